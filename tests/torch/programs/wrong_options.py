"""Wrong options of glake.enable() are typed, and change nothing."""

import torch  # noqa: F401

import glake
from glake.allocator.torch import AlreadyEnabled, mode


def refused(kind, words, **options):
    try:
        glake.enable(**options)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{options} was accepted")


refused(glake.UnknownOption, "GLAKE_POLICY", driver="sim", polcy="compact")
refused(glake.InvalidOption, "balanced or compact", driver="sim", policy="smart")
refused(glake.InvalidOption, "fraction", driver="sim", limit=1.5)
for name in ("limit", "headroom", "contiguous", "view_budget", "sim_memory", "sim_seed", "trace"):
    for value in (True, False):
        refused(glake.InvalidOption, f"{name}={value}: ", driver="sim", **{name: value})
refused(glake.GlakeError, "GLAKE_DRIVER=sim", driver="cuda")
assert mode() is None
glake.enable(driver="sim", host_allocator=False)
glake.enable()
refused(AlreadyEnabled, "policy=balanced", policy="compact")
refused(AlreadyEnabled, "driver=sim", driver="cuda")
print(mode())
