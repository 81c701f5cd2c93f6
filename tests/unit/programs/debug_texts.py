"""The texts of the debug modes: a tag with line breaks, a second free, and who holds the memory."""

import ctypes

import glake
from glake import _C

with glake.tag("one\n\ntwo"):
    block = _C.malloc(1000)
ctypes.memset(block + 1000, 1, 1)
_C.free(block)
(found,) = glake.findings()
assert 'tag "one__two"' in found, found

try:
    _C.free(block)
    raise AssertionError("a second free was accepted")
except glake.InvalidPointer as error:
    text = str(error)
assert 'tag "one__two"' in text, text
_, first, *frames, last = text.partition("\n  allocated at:")[2].splitlines()
assert all(line.startswith(("    ", "  freed at:")) for line in (first, *frames, last)), text

with glake.tag("one\n\ntwo"):
    kept = _C.malloc(4 << 20)
try:
    glake.empty("1GiB")
    raise AssertionError("more memory than there is")
except glake.OutOfMemory as error:
    text = str(error)
lines = text.splitlines()
assert "Largest holders:" in lines, text
assert '  4.00 MiB in 1 block: tag "one__two"' in lines, text
_C.free(kept)
