"""Prints the fraction of memory that the environment sets, and whether it is kept."""

import torch

torch.cuda.init()
print(torch.cuda.get_per_process_memory_fraction())
try:
    torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("refused")
