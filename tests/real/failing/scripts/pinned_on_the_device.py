"""RuntimeError: only dense CPU tensors can be pinned

PyTorch, torch.Tensor.pin_memory: "Copies the tensor to pinned memory, if it's not already pinned."
(https://docs.pytorch.org/docs/stable/generated/torch.Tensor.pin_memory.html): host memory only.
"""

import torch

torch.ones(8, device="cuda").pin_memory()
