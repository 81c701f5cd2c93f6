"""Shows that no device is touched before the first tensor."""

import torch

import glake
from glake import _C
from glake.allocator import emulation

print(repr(_C.driver_path()), emulation.counters().state)
torch.ones(3)
print("libsimcuda" in _C.driver_path(), emulation.counters().state)
print(glake.stats()["glake.limit_bytes"] / emulation.default_memory())
