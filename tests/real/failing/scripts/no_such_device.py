"""torch.AcceleratorError: invalid device ordinal

CUDA Runtime API, cudaErrorInvalidDevice: "This indicates that the device ordinal supplied by the
user does not correspond to a valid CUDA device or that the action requested is invalid for the
specified device."
"""

import torch

model = torch.nn.Linear(8, 8, device="cuda:7")
