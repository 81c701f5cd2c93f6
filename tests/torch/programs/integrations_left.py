"""The mode glake is in, and the integrations that are left of those asked for."""

import os

import torch

from glake.allocator.torch import mode

torch.ones(3)
print(mode())
print(os.environ["GLAKE_INTEGRATIONS"])
