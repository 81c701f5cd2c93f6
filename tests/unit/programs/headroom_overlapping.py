"""Headrooms of contexts that overlap: the last that began counts, and nothing is left behind."""

import contextlib

import glake
from glake import _C

MIB = 1 << 20


def now() -> tuple[int, int, int]:
    return _C.headroom(0) // MIB, _C.headroom(1) // MIB, _C.headroom(-1) // MIB


def entered(nbytes: int, device: int | None = None) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(glake.headroom(nbytes * MIB, device))
    return stack


first, second, third = entered(10), entered(20), entered(30)
second.close()
assert now() == (30, 30, 30), now()
first.close()
assert now() == (30, 30, 30), now()
third.close()
assert now() == (0, 0, 0), now()

everywhere, one = entered(10), entered(20, 1)
everywhere.close()
assert now() == (0, 20, 0), now()
one.close()
assert now() == (0, 0, 0), now()

one, everywhere = entered(20, 1), entered(10)
one.close()
assert now() == (10, 10, 10), now()
everywhere.close()
assert now() == (0, 0, 0), now()

outer, made = entered(10), glake.headroom(20 * MIB)
outer.close()
with made:  # its headroom was taken away before it was entered
    assert now() == (20, 20, 20), now()
assert now() == (0, 0, 0), now()
