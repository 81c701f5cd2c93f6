import ctypes

import torch

source = torch.arange(1 << 16, dtype=torch.int32).pin_memory()
assert source.is_pinned()
side = torch.cuda.Stream()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
with torch.cuda.stream(side):
    start.record()
    there = source.to("cuda:0", non_blocking=True)
    second = torch.empty_like(there)
    second.copy_(there, non_blocking=True)
    end.record()
torch.cuda.current_stream().wait_stream(side)
back = second.cpu()
assert torch.equal(back, source), "copies lose bytes"
assert end.query() and start.elapsed_time(end) > 0
other = there.to("cuda:1")
assert other.device.index == 1 and torch.equal(other.cpu(), source)
rows = there.view(256, 256)[:, :16].cpu()  # by copies of rows, or a kernel, which computes nothing
assert rows.shape == (256, 16)
zeros = torch.zeros(4096, device="cuda:1", dtype=torch.uint8)
assert torch.cuda.current_device() == 0
torch.cuda.synchronize(1)
assert zeros.cpu().sum() == 0
callback = []
done = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: callback.append(1))
runtime = ctypes.CDLL("libcudart.so.13")
assert runtime.cudaLaunchHostFunc(ctypes.c_void_p(side.cuda_stream), done, None) == 0
side.synchronize()
assert callback == [1]
