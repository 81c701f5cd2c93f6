"""Calls a function that torch does not have."""

import torch

torch.cuda.memory_alocated()
torch.cuda.synchronize()
