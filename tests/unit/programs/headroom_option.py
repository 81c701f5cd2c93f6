"""Prints whether blocks fit beside the headroom that the option sets."""

import glake
from glake import _C

for size in (100, 160):
    try:
        _C.free(_C.malloc(size << 20))
        print("fits")
    except glake.OutOfMemory as error:
        print("headroom" in str(error))
