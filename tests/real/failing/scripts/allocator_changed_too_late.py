"""RuntimeError: already initialized

PyTorch, torch.cuda.memory.change_current_allocator: "If the current allocator has already been
used/initialized, this function will error."
(https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.change_current_allocator.html)
"""

import ctypes.util

import torch

torch.ones(8, device="cuda")
mine = torch.cuda.memory.CUDAPluggableAllocator(ctypes.util.find_library("c"), "malloc", "free")
torch.cuda.memory.change_current_allocator(mine)
