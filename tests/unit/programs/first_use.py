"""Takes device 0 into use."""

from glake import _C

_C.stats(0)
