"""CuPy's arrays in glake's memory: kernels, streams, memory shared with PyTorch, errors."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch
from checks import DEVICE, MIB, Skip, main, raises

import glake
from glake import integrations


def cupy() -> ModuleType:
    """CuPy, with glake's hook. Skip if it is not installed."""
    if importlib.util.find_spec("cupy") is None:
        raise Skip("CuPy is not installed")
    import cupy

    integrations.install("cupy")
    return cupy


def requested() -> int:
    """How many bytes CuPy has requested from glake so far."""
    return int(glake.stats(0).get("glake.integrations.cupy.requested_bytes", 0))


def check_kernels_compute_in_it() -> None:
    cp = cupy()
    before = requested()
    x = cp.arange(1 << 22, dtype=cp.float64)
    y = (x * 2 + 1).reshape(2048, 2048)
    assert float(y[-1, -1]) == 2 * ((1 << 22) - 1) + 1
    assert int((y.sum(axis=1) - y[:, 0] * 2048).sum()) == 2048 * 2048 * 2047
    assert requested() >= before + x.nbytes + y.nbytes


def check_freed_arrays_serve_torch() -> None:
    cp = cupy()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    array = cp.ones(100 * MIB, dtype=cp.uint8)
    cp.cuda.runtime.deviceSynchronize()
    held = torch.cuda.memory_reserved()
    del array
    tensor = torch.full((100 * MIB,), 3, dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.memory_reserved() <= held
    assert bool((tensor == 3).all())


def check_streams_order_reuse() -> None:
    cp = cupy()
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
    bad = []
    for turn in range(60):
        with streams[turn % 3]:
            array = cp.full(9 * MIB, turn % 251, dtype=cp.uint8)
            bad.append((array != turn % 251).any())
            del array
    cp.cuda.runtime.deviceSynchronize()
    assert not any(bool(each) for each in bad)


def check_dlpack_both_ways() -> None:
    cp = cupy()
    tensor = torch.arange(MIB, device=DEVICE)
    array = cp.from_dlpack(tensor)
    array += 1
    cp.cuda.runtime.deviceSynchronize()
    assert int(tensor[-1]) == MIB
    back = torch.from_dlpack(cp.arange(1000))
    assert int(back.sum()) == 999 * 500


def check_a_buffer_is_taken_by_both() -> None:
    cp = cupy()
    with glake.empty("16MiB", DEVICE) as block:
        array = cp.asarray(block).view(cp.uint8)
        array[:] = 5
        cp.cuda.runtime.deviceSynchronize()
        tensor = torch.as_tensor(block, device=DEVICE)
        assert bool((tensor == 5).all()) and tensor.data_ptr() == block.ptr
        del array, tensor


def check_pinned_memory() -> None:
    cp = cupy()
    import numpy as np

    pinned = cp.cuda.alloc_pinned_memory(8 * MIB)
    array = np.frombuffer(pinned, np.uint8, 8 * MIB)
    array[:] = np.arange(8 * MIB, dtype=np.uint64).astype(np.uint8)
    there = cp.empty(8 * MIB, dtype=cp.uint8)
    there.set(array)
    assert bool((there.get() == array).all())


def check_its_own_error() -> None:
    cp = cupy()
    total = torch.cuda.mem_get_info()[1]
    error = raises(cp.cuda.memory.OutOfMemoryError, lambda: cp.empty(2 * total, dtype=cp.uint8))
    assert "GiB" in str(error), error
    assert int(cp.ones(10).sum()) == 10


if __name__ == "__main__":
    main(globals())
