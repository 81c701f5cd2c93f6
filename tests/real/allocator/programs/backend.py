"""Prints which allocator PyTorch has."""

import torch

print(torch.cuda.get_allocator_backend())
