"""Halves its batch until it fits, as large-batch finders do."""

import torch

batch = 128
while True:
    try:
        held = torch.empty(batch << 20, dtype=torch.uint8, device="cuda")
        break
    except torch.OutOfMemoryError:
        batch //= 2
print("batch", batch)
