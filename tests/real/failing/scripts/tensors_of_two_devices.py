"""RuntimeError: Expected all tensors to be on the same device

PyTorch, CUDA semantics: "Cross-GPU operations are not allowed by default, with the exception of
copy_() and other methods with copy-like functionality"
(https://docs.pytorch.org/docs/stable/notes/cuda.html).
"""

import torch

first = torch.ones(8, 8, device="cuda:0")
second = torch.ones(8, 8, device="cuda:1")
product = first @ second
