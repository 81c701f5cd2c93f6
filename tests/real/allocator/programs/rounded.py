"""Prints to how many bytes sizes are rounded."""

import torch

KIB, MIB = 1 << 10, 1 << 20
sizes = [1, 600, 3 * KIB, 5000, 70000, MIB, MIB + 1, 1300 * KIB, 3 * MIB]
# PyTorch's allocator splits off no rest below 1 MiB. So above 10 MiB only whole 2 MiB are exact.
sizes += [k * MIB for k in (18, 34, 102, 150, 514)]
for size in sizes:
    before = torch.cuda.memory_allocated()
    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    print(size, torch.cuda.memory_allocated() - before)
    del block
    torch.cuda.empty_cache()
