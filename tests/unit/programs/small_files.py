"""Joins a shared simulated machine where a file may have 1 GiB."""

import resource

from glake import _C

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
_C.malloc(2 << 20)
