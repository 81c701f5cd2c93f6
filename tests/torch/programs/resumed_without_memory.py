"""A region that cannot be resumed stays paused and whole."""

import torch

import glake

with glake.region("weights"):
    kept = torch.arange(12 << 20, dtype=torch.int32)
glake.pause("weights")
others = torch.ones(24 << 20)
for _ in range(2):
    try:
        glake.resume("weights")
    except glake.OutOfMemory as error:
        for part in ('region "weights"', "needs 48.00 MiB", "Free about", "GLAKE_LIMIT"):
            assert part in str(error), error
    else:
        raise AssertionError("48 MiB beside 96 MiB in 128 MiB")
    (region,) = glake.regions()
    assert region.state == "paused" and region.paused == 48 << 20
assert bool((others == 1).all())
del others
glake.resume("weights", verify=True)
assert torch.equal(kept, torch.arange(12 << 20, dtype=torch.int32))
