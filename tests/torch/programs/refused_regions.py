"""A refusal names the region."""

import torch

import glake


def fails(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


with glake.region("first"), glake.contiguous():  # the first refusal leaves glake on
    fails(RuntimeError, "cannot be of region", lambda: torch.ones(1))
fails(glake.InvalidArgument, "no region 'cache'", lambda: glake.pause("cache"))
with glake.region("cache", budget="8MiB"):
    kept = torch.ones(1 << 20)
    with glake.region("inner"):
        inner = torch.ones(1 << 18)
    fails(RuntimeError, 'region "cache" on cuda:0 holds', lambda: torch.ones(2 << 20))
outside = torch.ones(2 << 20)
sizes = {r.name: r.live for r in glake.regions()}
assert sizes == {"cache": 4 << 20, "inner": 1 << 20}, sizes
fails(glake.InvalidArgument, "did you mean 'cache'?", lambda: glake.pause("caches"))
fails(glake.InvalidDevice, "there are", lambda: glake.pause("cache", device=99))
fails(glake.InvalidArgument, "no control characters", glake.region("a\0b").__enter__)
fails(glake.InvalidArgument, "not to 'tape'", lambda: glake.pause("cache", to="tape"))
fails(glake.errors.WrongType, "by a string", lambda: glake.pause("cache", to=["host"]))
fails(glake.errors.WrongType, "path, not an int", lambda: glake.pause("cache", to="disk", folder=3))
fails(glake.InvalidArgument, "needs a folder", lambda: glake.pause("cache", to="disk"))
fails(glake.InvalidArgument, "names none", lambda: glake.pause("cache", "disk", ""))
fails(glake.RegionRefused, "/no/such", lambda: glake.pause("cache", "disk", "/no/such"))
fails(glake.RegionRefused, "on no device", lambda: glake.resume("cache"))
glake.pin(kept.data_ptr())
fails(glake.RegionRefused, "are pinned", lambda: glake.pause("cache"))
glake.unpin(kept.data_ptr())
glake.pause("cache")
fails(glake.RegionRefused, "paused already", lambda: glake.pause("cache"))
with glake.region("cache"):
    way_out = 'region "cache" on cuda:0 is paused: glake.resume("cache")'
    fails(RuntimeError, way_out, lambda: torch.ones(9))
    fails(glake.RegionPaused, way_out, lambda: glake.empty(9))
segments = glake.snapshot()["segments"]
assert any(s["paused"] for s in segments)
assert (
    sum(s["total_size"] for s in segments if not s["paused"])
    == (glake.stats()["reserved_bytes.all.current"])
)
del inner
glake.resume("cache")
assert bool((kept == 1).all()) and bool((outside == 1).all())
glake.pause("cache", to="discard")
del kept  # so nothing is left to resume
for unbounded in (0, "0"):
    with glake.region("cache", budget=unbounded):
        torch.ones(4 << 20)
fails(TypeError, "a string", lambda: glake.region(3).__enter__())
fails(glake.InvalidArgument, "quotes", lambda: glake.region('a"b').__enter__())
fails(glake.InvalidArgument, "budget", lambda: glake.region("a", "much").__enter__())
