"""Halves its batch until it fits, as searches for the largest batch do."""

import torch

batch = 128
while True:
    try:
        held = torch.empty(batch << 20, dtype=torch.uint8, device="cuda")
        break
    except torch.OutOfMemoryError:
        batch //= 2
print("batch", batch)
