"""A copy that a forked child begins is a typed error."""

import os

import numpy as np

import glake.transfer as t
from glake import _C, errors

a = t.Raw(_C.malloc(64 << 20), 64 << 20)
handle = t.copy(a, np.zeros(64 << 20, np.uint8))
child = os.fork()
if child == 0:
    try:
        t.copy(a, np.zeros(64 << 20, np.uint8))
    except errors.Forked:
        raise SystemExit(7) from None
    raise SystemExit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
handle.wait()
