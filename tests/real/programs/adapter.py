import time

import torch

import glake_autoload

glake_autoload.load()  # PyTorch calls this at import if glake is installed
layer = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(3):
    layer(torch.randn(32, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
import glake  # noqa: E402

stats = glake.stats()
assert torch.cuda.memory_allocated() > 0
print("served by glake", stats)
# A backward thread that asks for the GIL while the interpreter ends aborts the process, with any
# allocator: docs/real.md, "Seen in PyTorch itself".
time.sleep(0.3)
