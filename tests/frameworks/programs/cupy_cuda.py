"""CuPy's runtime, streams and graphs on glake's memory, over the stand-ins for CUDA's libraries.

cupy_cuda.py CASE runs the function of that name. No kernel computes here, so every byte comes from
a copy or a memset.
"""

import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable

import cupy
import cupyx
import numpy as np

import glake
from glake import _C, integrations, simcuda

MIB = 1 << 20


def live() -> int:
    gc.collect()
    return _C.stats()["allocated_bytes.all.current"]


def filled(value: int, nbytes: int = MIB) -> cupy.ndarray:
    """An array that the current stream fills."""
    array = cupy.ndarray((nbytes,), dtype=cupy.uint8)
    array.data.memset_async(value, nbytes)
    return array


def holds(array: cupy.ndarray, value: int) -> bool:
    return bool((array.get() == value).all())


def arrays() -> None:
    host = np.arange(MIB, dtype=np.uint32)
    array = cupy.asarray(host)
    assert live() == 4 * MIB and (array.get() == host).all()
    copy = cupy.empty_like(array)
    copy.data.copy_from_device(array.data, array.nbytes)
    part = copy[10:20]
    del copy
    assert live() == 8 * MIB and (part.get() == host[10:20]).all()
    attributes = cupy.cuda.runtime.pointerGetAttributes(array.data.ptr)
    assert (attributes.device, attributes.type) == (0, 2)
    joined = cupy.array([np.ones(3), np.zeros(3)])  # through pinned memory
    assert joined.get().tolist() == [[1, 1, 1], [0, 0, 0]]
    cupy.random.random(10)  # kernels of cuRAND's and CuPy's own
    (array * 2).sum()
    assert glake.stats()["glake.integrations.cupy.requested_bytes"] >= 8 * MIB


def streams() -> None:
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with first:
        array = filled(3)
        done = first.record()
    second.wait_event(done)
    with second:
        assert holds(array, 3)
    done.synchronize()
    assert done.done
    del array
    for value in range(20):  # a stream ends before the memory that was allocated on it
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            array = filled(value)
        stream.synchronize()
        del stream
        assert holds(array, value)
        del array
    with cupy.cuda.Stream.ptds:
        assert holds(filled(9), 9)


def devices() -> None:
    with cupy.cuda.Device(0):
        here = filled(5)
    with cupy.cuda.Device(1):
        there = cupy.ndarray((MIB,), dtype=cupy.uint8)
        assert there.device.id == 1
        there.data.copy_from_device(here.data, MIB)
        assert holds(there, 5)
        moved = cupy.asarray(here)
        assert moved.device.id == 1 and holds(moved, 5)


def refusals() -> None:
    held = []
    try:
        while True:
            held.append(cupy.ndarray((64 * MIB,), dtype=cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError as error:
        assert isinstance(error, glake.OutOfMemory) and "Tried to allocate" in str(error)
    assert len(held) == 8 and live() == 512 * MIB
    held.clear()
    assert live() == 0
    cycle: list[object] = [filled(2, 400 * MIB)]
    cycle.append(cycle)
    del cycle  # garbage, which is collected before the next request is refused
    assert holds(filled(3, 400 * MIB), 3)
    assert holds(filled(1, 64 * MIB), 1)
    # Without pinned memory, CuPy warns and copies from ordinary memory.
    host = np.arange(64 * MIB, dtype=np.uint8)
    simcuda.fail("cuMemHostAlloc", times=1000)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        array = cupy.asarray(host)
    simcuda.fail()
    assert (array.get() == host).all()
    assert [each.category for each in said] == [cupy._util.PerformanceWarning], said


def pools() -> None:
    """CuPy's own allocators work beside glake's."""
    own, ordered = cupy.cuda.MemoryPool(), cupy.cuda.MemoryAsyncPool()
    over = cupy.cuda.MemoryPool(cupy.cuda.get_allocator())
    makes = (own.malloc, ordered.malloc, cupy.cuda.malloc_managed, None, over.malloc)
    for make in makes:
        with cupy.cuda.using_allocator(make):
            array = filled(7)
            assert holds(array, 7)
            assert live() == (MIB if make is makes[-1] else 0)
            del array
    assert own.total_bytes() == over.total_bytes() == MIB
    for pool in (own, ordered, over):
        pool.free_all_blocks()
    assert live() == 0
    assert cupy.get_default_memory_pool().used_bytes() == 0
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def pinned() -> None:
    there, back = (cupyx.empty_pinned((MIB,), dtype=np.uint8) for _ in range(2))
    assert _C.host_stats()["allocated_bytes.current"] == 2 * MIB
    there[:] = 6
    stream = cupy.cuda.Stream(non_blocking=True)
    array = cupy.ndarray((MIB,), dtype=cupy.uint8)
    array.set(there, stream=stream)
    array.get(out=back, stream=stream)
    stream.synchronize()
    assert (back == 6).all()
    kind = cupy.cuda.runtime.pointerGetAttributes(back.ctypes.data).type
    assert kind == cupy.cuda.runtime.memoryTypeHost
    del there, back
    gc.collect()
    assert _C.host_stats()["allocated_bytes.current"] == 0


def graphs() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        result = filled(0)
        stream.begin_capture()
        made = filled(4)  # its memory is allocated while the stream is captured
        result.data.copy_from_device_async(made.data, MIB)
        graph = stream.end_capture()
        for _ in range(3):
            result.data.memset_async(0, MIB)
            graph.launch()
            assert holds(result, 4)
    # The capture's end is known, also of a stream that had joined it and of streams that are gone.
    first, second = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with first:
        first.begin_capture()
        on_first = filled(1, 200 * MIB)
        second.wait_event(first.record())
        with second:
            on_second = filled(2, 200 * MIB)
            joined = second.record()
        first.wait_event(joined)
        assert _C.capturing(0)
        graph = first.end_capture()
    assert not _C.capturing(0)
    del first, second, on_first, on_second, graph, stream, made, result
    assert live() == 0 and holds(filled(3, 500 * MIB), 3)


def captured_by_torch() -> None:
    """Streams of torch's own never end, so glake may ask about them at any time."""
    import torch

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream), cupy.cuda.Stream.from_external(stream):
        made = filled(6)
        assert _C.capturing(0)
    assert not _C.capturing(0)
    made.data.memset(0, MIB)
    graph.replay()
    torch.cuda.synchronize()
    assert holds(made, 6)


def foreign() -> None:
    """Memory of others, and handles for other processes."""
    buffer = glake.empty(MIB)
    arrays = [cupy.from_dlpack(buffer), cupy.asarray(buffer)]
    arrays[0].data.memset(2, MIB)
    assert all(array.data.ptr == buffer.ptr and holds(array, 2) for array in arrays)
    try:
        cupy.cuda.runtime.ipcGetMemHandle(arrays[0].data.ptr)
    except cupy.cuda.runtime.CUDARuntimeError:
        pass
    else:
        raise AssertionError("virtual memory has no legacy handle")
    with glake.contiguous("legacy"):
        array = filled(1)
    assert len(cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr)) == 64


def with_torch() -> None:
    import torch

    array = filled(3)
    tensor = torch.from_dlpack(array)
    assert tensor.data_ptr() == array.data.ptr
    del array
    assert live() >= MIB and bool((tensor.cpu() == 3).all())
    mine = torch.empty(MIB, dtype=torch.uint8, device="cuda:0")
    for made in (cupy.from_dlpack(mine), cupy.asarray(mine)):
        assert made.data.ptr == mine.data_ptr()
        made.data.memset(5, MIB)
        assert bool((mine.cpu() == 5).all())
        made.data.memset(0, MIB)
    with cupy.cuda.Stream(non_blocking=True):  # torch's stream waits for CuPy's
        assert bool((torch.from_dlpack(filled(2)).cpu() == 2).all())


def threads() -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with cupy.cuda.Device(number % 2), cupy.cuda.Stream(non_blocking=True):
                for _ in range(30):
                    assert holds(filled(number), number)
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failed and live() == 0, failed


def forked() -> None:
    array, block = filled(1), cupy.cuda.alloc_pinned_memory(MIB)
    child = os.fork()
    if child == 0:
        del array, block  # the child has no part in the memory
        for make in (lambda: filled(1), lambda: cupy.cuda.alloc_pinned_memory(MIB)):
            try:
                make()
            except (cupy.cuda.runtime.CUDARuntimeError, glake.Forked):
                continue
            sys.exit("the child was given memory")
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert holds(array, 1) and holds(filled(2), 2)


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        arrays,
        streams,
        devices,
        refusals,
        pools,
        pinned,
        graphs,
        captured_by_torch,
        foreign,
        with_torch,
        threads,
        forked,
    )
}

if __name__ == "__main__":
    integrations.install("cupy")
    CASES[sys.argv[1]]()
    print("cupy", cupy.__version__)
