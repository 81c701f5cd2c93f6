"""A region comes back where idle memory had taken the kernel's mappings."""

import torch

import glake
from glake import _C

GRANULE = 2 << 20


def apart(count):
    """Blocks of a granule with unmapped granules between them, so that each has a mapping."""
    made = [torch.full((GRANULE,), i, dtype=torch.uint8) for i in range(2 * count)]
    del made[1::2]
    _C.empty_cache()
    return made


with glake.region("weights"):
    kept = apart(20)
glake.pause("weights")
others = []
for _ in range(10):
    others += apart(4)
try:
    glake.resume("weights")
except glake.DriverError as error:
    assert "stays paused" in str(error) and "kernel mappings" in str(error), error
else:
    raise AssertionError("there was room for all mappings")
del others
glake.resume("weights", verify=True)
assert [int(each[-1]) for each in kept] == list(range(0, 40, 2))
