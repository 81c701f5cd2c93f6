"""Allocates where the file system of the simulator is full (argument: the kind of blocks)."""

import re
import sys

from glake import _C, errors, simcuda

simcuda.configure("machine", "small-shm")
simcuda.configure("memory", "1GiB")
kind = int(sys.argv[1])


def ask(size):
    return _C.malloc_contiguous(size, kind=kind) if kind else _C.malloc(size)


fits = []
for size in (200 << 20, 1000 << 20):
    try:
        ask(size)
    except errors.OutOfMemory as error:
        print(error)
        fits.append(int(re.search(r"largest fit now .*?\((\d+) bytes", str(error))[1]))
_C.free(ask(fits[0]))
try:
    ask(fits[0] + (2 << 20))
except errors.OutOfMemory:
    print("fits", *fits)
