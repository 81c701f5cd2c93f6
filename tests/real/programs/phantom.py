import resource

import torch

parts = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(70)]
for part in parts:
    part.zero_()
torch.cuda.synchronize()
read = torch.full((1000,), 7, dtype=torch.uint8)
read.copy_(parts[0][:1000])
assert not read.any(), "what is read back is what the host's memory held"
assert torch.cuda.memory_allocated() == 70 << 30
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20, "the host holds the bytes"
