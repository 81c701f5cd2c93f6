"""A CUDA build gets no adapter where there is no compiler."""

import os

import torch

torch.version.cuda = "13.0"  # as on a CUDA build
os.environ["GLAKE_ALLOCATOR"] = "1"
import glake_autoload  # noqa: E402

glake_autoload.load()
from glake.allocator.torch import mode  # noqa: E402

print(mode())
