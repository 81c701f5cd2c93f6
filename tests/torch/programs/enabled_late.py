"""glake.enable() while tensors are live."""

import torch

import glake

old = torch.arange(1000.0)
glake.enable(driver="sim", policy="compact", limit="256MiB")
glake.enable(policy="compact", limit=256 << 20)
new = torch.arange(1000.0)
assert torch.equal(old, new)
old.resize_(5000)
assert torch.equal(old[:1000], new)
assert glake.stats()["requested_bytes.all.current"] == 4000  # the old tensor keeps its own memory
del old, new
assert glake.stats()["requested_bytes.all.current"] == 0
from glake.allocator import emulation  # noqa: E402

assert emulation.counters().failed_frees == 0
