"""Makes a tensor."""

import torch

print(torch.ones(3).sum().item())
