"""The first work that a thread gives to CUDA is a launch of cuDNN, as in autograd's thread. The
memory that it needs is cached, so no call of the runtime comes before."""

import threading

import torch

x, grad = torch.ones(2, 3, 5, 5, device="cuda"), torch.ones(2, 3, 4, 4, device="cuda")
grid = torch.zeros(2, 4, 4, 2, device="cuda")
torch.empty(1000, device="cuda")  # what the thread will take is cached
made = []


def work() -> None:
    made.append(torch.ops.aten.cudnn_grid_sampler_backward(x, grid, grad))


thread = threading.Thread(target=work)
thread.start()
thread.join()
assert made[0][0].shape == x.shape
print("ok")
