"""Copies through the CUDA runtime, by ctypes, and then beside an engine of the program's own."""

import ctypes
import sys

import numpy as np

BYTES = 16 << 20
cuda = ctypes.CDLL("libcudart.so.13")
POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t


def ok(code: int) -> None:
    assert code == 0, code


def memory(name: str, *more: int) -> int:
    found = POINTER()
    ok(getattr(cuda, name)(ctypes.byref(found), SIZE(BYTES), *more))
    assert found.value
    return found.value


def there_and_back(stream: POINTER, seed: int) -> None:
    ends = [memory("cudaHostAlloc", 0) for _ in range(2)]
    views = [np.frombuffer((ctypes.c_char * BYTES).from_address(end), np.uint32) for end in ends]
    views[0][:] = np.arange(seed, seed + BYTES // 4, dtype=np.uint32)
    views[1][:] = 0
    gpu = memory("cudaMalloc")
    ok(cuda.cudaMemcpyAsync(POINTER(gpu), POINTER(ends[0]), SIZE(BYTES), 1, stream))
    ok(cuda.cudaMemcpyAsync(POINTER(ends[1]), POINTER(gpu), SIZE(BYTES), 4, stream))
    ok(cuda.cudaFree(POINTER(gpu)))
    assert np.array_equal(views[0], views[1])
    for end in ends:
        ok(cuda.cudaFreeHost(POINTER(end)))


stream = POINTER()
ok(cuda.cudaStreamCreate(ctypes.byref(stream)))
there_and_back(stream, 1)
there_and_back(POINTER(), 2)
if "engine" in sys.argv:
    from glake.transfer import Engine

    with Engine() as engine:
        there_and_back(stream, 3)
        assert engine.stats()["bytes"] == 2 * BYTES, engine.stats()
    there_and_back(stream, 4)
print("all right")
