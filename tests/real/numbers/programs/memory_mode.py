"""Memory mode: data read back are zeros, and shapes that depend on data follow that."""

import sys

import torch

phantom = sys.argv[1] == "phantom"
noise = [torch.full((1 << 18,), 7.0) for _ in range(8)]  # fills the host's heap with sevens
del noise
x = torch.full((1 << 18,), 3.0, device="cuda")
assert x.cpu().count_nonzero() == 0  # small copies and large ones
assert x[:5].cpu().tolist() == [0.0] * 5 and x.sum().item() == 0.0
assert torch.full((1 << 22,), 3.0, device="cuda").cpu().count_nonzero() == 0
assert x.nonzero().shape == (0, 1) and x[x > 1].shape == (0,) and not torch.equal(x, x.clone())
gates = torch.rand(16, 8, device="cuda").topk(2)
assert gates.indices.cpu().unique().tolist() == [0]  # the first expert
copied = torch.full((64,), 5.0).to("cuda")
assert copied.cpu().tolist() == [5.0] * 64 and copied[3:5].cpu().tolist() == [5.0] * 2
copied.add_(1)  # phantom memory forgets what the host copied once a kernel may have written there
assert copied.cpu().tolist() == [0.0 if phantom else 5.0] * 64
copied = torch.full((64,), 5.0).to("cuda")
copied.copy_(torch.full((64,), 6.0))
assert copied.cpu().tolist() == [6.0] * 64
large = torch.full((1 << 23,), 5.0).to("cuda").cpu()  # phantom memory keeps 16 MiB at most
assert large.min() == large.max() == (0.0 if phantom else 5.0)
print("zeros")
