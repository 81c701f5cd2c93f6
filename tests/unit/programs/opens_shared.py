"""Opens the shared block whose text it reads from the standard input."""

import sys

import glake
from glake import _C
from glake.allocator import sharing

text = sys.stdin.readline().strip()
ptr, size = sharing.open_shared(text)
assert size == 5_000_000 and sharing.open_shared(text) == (ptr, size)
sharing.close_shared(ptr)
sharing.close_shared(ptr)
for wrong, error in (
    (lambda: sharing.close_shared(ptr), glake.InvalidPointer),
    (lambda: sharing.open_shared(text[:-1]), glake.InvalidArgument),
    (lambda: sharing.open_shared(text + chr(0)), glake.InvalidArgument),
):
    try:
        wrong()
    except error:
        continue
    raise AssertionError("accepted")
_C.shutdown()
print("opened")
