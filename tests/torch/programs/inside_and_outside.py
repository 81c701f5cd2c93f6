"""Checks which tensors lie in glake's memory, and which outside."""

import io

import numpy
import torch

import glake
from glake.allocator import emulation
from glake.allocator.buffer import is_block


def inside(tensor):
    return is_block(tensor.untyped_storage().data_ptr())


inner = torch.ones(1 << 18)
array = numpy.ones(1 << 18, dtype="float32")
outer = torch.from_numpy(array)
shared = torch.ones(10).share_memory_()
assert inside(inner) and inside(inner.clone()) and inside(torch.tensor([1.0] * 64))
assert not inside(outer) and not inside(shared)
assert not inside(torch.tensor([], dtype=torch.float32))
assert abs(glake.covered_share() - 0.5) < 0.01, glake.covered_share()
again = outer[5:]
assert abs(glake.covered_share() - 0.5) < 0.01  # a storage counts once
file = io.BytesIO()
torch.save({"inner": inner, "outer": outer}, file)
loaded = torch.load(io.BytesIO(file.getvalue()))
assert inside(loaded["inner"]) and inside(loaded["outer"])
assert torch.equal(loaded["inner"], inner)
sized = torch.ones(10)
sized.untyped_storage().resize_(0)
sized.untyped_storage().resize_(1 << 21)
sized.untyped_storage().fill_(3)
assert inside(sized) and glake.stats()["requested_bytes.all.current"] > 1 << 21
lazy = torch._lazy_clone(inner)
lazy[0] = 5
assert inner[0] == 1 and lazy[0] == 5
assert emulation.counters().failed_frees == 0
