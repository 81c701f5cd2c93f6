"""Makes settings (argument) while CUDA is in use already, and prints what PyTorch says."""

import sys
import warnings

import torch

torch.zeros(1, device="cuda")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch._C._accelerator_setAllocatorSettings(sys.argv[1])
print(*(str(each.message) for each in caught))
