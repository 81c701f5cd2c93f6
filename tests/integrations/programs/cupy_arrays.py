"""CuPy's own memory classes over glake's blocks.

CuPy's runtime does not start without a GPU. So the program provides the device and the stream, for
which CuPy would ask its runtime.
"""

import pickle
from collections.abc import Callable

import cupy
import numpy as np

import glake
import glake.integrations.cupy as hook
from glake import _C, integrations

MIB = 1 << 20


def live() -> int:
    return _C.stats()["allocated_bytes.all.current"]


before = cupy.cuda.get_allocator()
integrations.install("cupy")
integrations.install("cupy")
hook._where = lambda: (0, 0)
assert cupy.cuda.get_allocator() is hook.allocate

array = cupy.ndarray((2, MIB), dtype=cupy.float32)
assert live() == 8 * MIB and _C.block_info(array.data.ptr)[0] == 8 * MIB
view = array[1]
del array
assert live() == 8 * MIB and view.data.ptr % 512 == 0
del view
assert live() == 0
assert cupy.ndarray((0,), dtype=cupy.float32).nbytes == 0 and live() == 0


def error_of(make: Callable[[int], object], nbytes: int) -> glake.OutOfMemory:
    try:
        make(nbytes)
    except glake.OutOfMemory as error:
        return error
    raise AssertionError("there was room")


for nbytes in (1 << 40, 1 << 62):  # the second is more than a block may have
    refused = error_of(cupy.cuda.alloc, nbytes)
    assert isinstance(refused, cupy.cuda.memory.OutOfMemoryError)
    assert "Tried to allocate" in str(refused), refused
    again = pickle.loads(pickle.dumps(refused))
    assert type(again) is type(refused) and str(again) == str(refused)
assert "Tried to allocate" in str(error_of(cupy.cuda.alloc_pinned_memory, 1 << 62))

pinned = cupy.cuda.alloc_pinned_memory(3 * MIB)
held = _C.host_stats()["allocated_bytes.current"]
assert pinned.ptr and 3 * MIB <= held <= 4 * MIB, held
there = np.frombuffer(pinned, np.uint8, 3 * MIB)
there[:] = 7
del there, pinned
assert _C.host_stats()["allocated_bytes.current"] == 0

told = glake.stats()
assert told["glake.integrations.cupy.installed"] == 1
assert told["glake.integrations.cupy.requested_bytes"] == 8 * MIB
assert told["glake.integrations.cupy.pinned_bytes"] == 3 * MIB
integrations.uninstall("cupy")
assert glake.stats()["glake.integrations.cupy.installed"] == 0
integrations.uninstall("cupy")
assert cupy.cuda.get_allocator() == before
print("cupy", cupy.__version__)
