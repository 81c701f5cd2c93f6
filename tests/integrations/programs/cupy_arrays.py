"""CuPy's own memory classes over glake's blocks.

CuPy's runtime does not start without a GPU. So the program provides the device and the stream, for
which CuPy would ask its runtime.
"""

import ctypes
import gc
import os
import pickle
import sys
import types
from collections.abc import Callable

import cupy
import numpy as np

import glake
import glake.integrations.cupy as hook
from glake import _C, integrations

MIB = 1 << 20
DEFAULT = types.SimpleNamespace(ptr=0)  # a default stream


def live() -> int:
    return _C.stats()["allocated_bytes.all.current"]


before = cupy.cuda.get_allocator()


def refused_inside(call: Callable[[str], None]) -> None:
    """CuPy cannot change its allocator inside using_allocator, so neither can the hook."""
    with cupy.cuda.using_allocator(None):
        try:
            call("cupy")
        except glake.InvalidArgument as error:
            assert "using_allocator" in str(error), error
        else:
            raise AssertionError("it said that it had changed the allocator")


refused_inside(integrations.install)
assert cupy.cuda.get_allocator() == before
integrations.install("cupy")
integrations.install("cupy")
hook._where = lambda: (0, DEFAULT)
assert cupy.cuda.get_allocator() is hook.allocate

array = cupy.ndarray((2, MIB), dtype=cupy.float32)
assert live() == 8 * MIB and _C.block_info(array.data.ptr)[0] == 8 * MIB
view = array[1]
del array
assert live() == 8 * MIB and view.data.ptr % 512 == 0
del view
assert live() == 0
assert cupy.ndarray((0,), dtype=cupy.float32).nbytes == 0 and live() == 0


def accessible(ptr: int, gpu: int) -> bool:
    driver = ctypes.CDLL(_C.driver_path())
    context, access = ctypes.c_void_p(), ctypes.c_ulonglong()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    device = (ctypes.c_int * 2)(1, gpu)  # CUmemLocation
    assert driver.cuMemGetAccess(ctypes.byref(access), device, ctypes.c_ulonglong(ptr)) == 0
    return access.value == 3  # read and write


# Each GPU may access the memory of the other once CuPy has arrays on both.
here = cupy.ndarray((8 * MIB,), dtype=cupy.uint8)
assert not accessible(here.data.ptr, 1)
hook._where = lambda: (1, DEFAULT)
there = cupy.ndarray((8 * MIB,), dtype=cupy.uint8)
assert accessible(here.data.ptr, 1) and accessible(there.data.ptr, 0)
hook._where = lambda: (0, DEFAULT)
del here, there


# As by CuPy's own pool, garbage in reference cycles is collected before a request is refused.
gc.disable()
cycle: list[object] = [cupy.ndarray((200 * MIB,), dtype=cupy.uint8)]
cycle.append(cycle)
del cycle
assert live() == 200 * MIB
array = cupy.ndarray((200 * MIB,), dtype=cupy.uint8)
assert live() == 200 * MIB
del array
gc.enable()


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
for nbytes in (1 << 46, 1 << 62):
    refused = error_of(cupy.cuda.alloc_pinned_memory, nbytes)
    # By these two CuPy knows that it must copy from memory that is not pinned.
    assert isinstance(refused, cupy.cuda.runtime.CUDARuntimeError) and refused.status == 2
    assert "bytes" in str(refused), refused
    again = pickle.loads(pickle.dumps(refused))
    assert type(again) is type(refused) and str(again) == str(refused) and again.status == 2

# Sizes are those that CuPy's own allocators take.
for size in (np.int64(MIB), float(MIB)):
    block = cupy.cuda.alloc(size)
    assert live() == MIB and block.mem.size == MIB
    del block
for call in (hook.allocate, hook.allocate_pinned):
    try:
        call(-1)
    except glake.InvalidArgument as error:
        assert not isinstance(error, MemoryError)
    else:
        raise AssertionError("a negative size")

pinned = cupy.cuda.alloc_pinned_memory(3 * MIB)
held = _C.host_stats()["allocated_bytes.current"]
assert pinned.ptr and 3 * MIB <= held <= 4 * MIB, held
there = np.frombuffer(pinned, np.uint8, 3 * MIB)
there[:] = 7
child = os.fork()
if child == 0:  # the child has no part in the memory; letting go of it is no error there
    sys.unraisablehook = lambda _: os._exit(1)
    del there, pinned
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child complained"
del there, pinned
assert _C.host_stats()["allocated_bytes.current"] == 0

told = glake.stats()
assert told["glake.integrations.cupy.installed"] == 1
assert told["glake.integrations.cupy.requested_bytes"] == 426 * MIB
assert told["glake.integrations.cupy.pinned_bytes"] == 3 * MIB
refused_inside(integrations.uninstall)
assert cupy.cuda.get_allocator() is hook.allocate
assert glake.stats()["glake.integrations.cupy.installed"] == 1
integrations.uninstall("cupy")
assert glake.stats()["glake.integrations.cupy.installed"] == 0
integrations.uninstall("cupy")
assert cupy.cuda.get_allocator() == before
print("cupy", cupy.__version__)
