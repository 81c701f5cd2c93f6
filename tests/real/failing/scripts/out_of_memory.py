"""torch.OutOfMemoryError: Tried to allocate

PyTorch, torch.OutOfMemoryError (https://docs.pytorch.org/docs/stable/generated/torch.cuda.OutOfMemoryError.html),
of CUDA Runtime API, cudaErrorMemoryAllocation: "The API call failed because it was unable to
allocate enough memory or other resources to perform the requested operation."
"""

import torch

weights = [torch.empty(128 << 20, dtype=torch.uint8, device="cuda") for _ in range(1000)]
