"""Prints glake's mode, and which of the requested integrations are left."""

import os

import torch

from glake.allocator.torch import mode

torch.ones(3)
print(mode())
print(os.environ["GLAKE_INTEGRATIONS"])
