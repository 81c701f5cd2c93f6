"""Prints glake's mode (arguments: modules that are imported before torch)."""

import importlib
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)

import torch  # noqa: E402

from glake.allocator.torch import mode  # noqa: E402

torch.ones(3)
print(mode())
