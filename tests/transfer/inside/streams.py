"""A copy comes after its streams' work, and later work comes after the copy.

simcuda runs work as late as is legal, so work out of order reads or writes the wrong bytes.
"""

import numpy as np
import pytest
from driver import Stream, Stuck
from memory import MIB, Device, numbers

from glake import errors, simcuda
from glake import transfer as t

SIZES = [4096, 24 * MIB]  # plain, and over several paths


class Framework(Device):
    """A GPU array whose framework has a current stream."""

    stream: Stream

    @property
    def __cuda_array_interface__(self) -> dict:
        return super().__cuda_array_interface__ | {"stream": self.stream.handle}


def made(size: int, gpu: int) -> Framework:
    array = Framework((size,), gpu=gpu)
    array.stream = Stream(gpu)
    return array


@pytest.mark.parametrize("size", SIZES)
def test_one_stream(size: int) -> None:
    array, back = made(size, 1), t.pinned(size)
    array.stream.fill(array.address, 5, size)
    handle = t.copy(back, array)
    array.stream.fill(array.address, 6, size)  # ordered behind the copy
    handle.wait()
    assert (back == 5).all()
    array.stream.synchronize()
    assert (array.get() == 6).all()


@pytest.mark.parametrize("size", SIZES)
def test_two_gpus_with_a_stream_each(size: int) -> None:
    source, target = made(size, 0), made(size, 2)
    source.stream.fill(source.address, 5, size)
    target.stream.fill(target.address, 9, size)
    seen = Device((size,), gpu=2)
    handle = t.copy(target, source)
    target.stream.copy(seen.address, target.address, size)
    source.stream.fill(source.address, 7, size)
    target.stream.synchronize()
    assert (seen.get() == 5).all() and handle.done()
    source.stream.synchronize()
    assert (target.get() == 5).all() and (source.get() == 7).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("late", [0, 1])
def test_neither_gpus_work_is_overtaken(size: int, late: int) -> None:
    """While one of the streams is held up, nothing is copied."""
    source, target = made(size, 0), made(size, 3)
    source.set(np.full(size, 5, np.uint8))
    target.set(np.full(size, 9, np.uint8))
    held = (source, target)[late]
    held.stream = Stuck(held.gpu)
    handle = t.copy(target, source)
    with pytest.raises(TimeoutError):
        handle.wait(0.05)
    assert (target.get() == 9).all()
    held.stream.release()
    handle.wait(60)
    assert (target.get() == 5).all()


@pytest.mark.parametrize("late", [0, 1])
def test_one_stream_is_captured_and_the_other_is_not(late: int) -> None:
    source, target = made(4096, 0), made(4096, 1)
    captured = (source, target)[late].stream
    captured.begin_capture()
    with pytest.raises(errors.CopyRefused, match="one of the two"):
        t.copy(target, source)
    captured.end_capture()


@pytest.mark.parametrize("size", SIZES)
def test_a_third_stream_may_wait(size: int) -> None:
    block, data = Device((size,), gpu=1), numbers(size)
    handle = t.copy(block, data)
    other, seen = Stream(1), Device((size,), gpu=1)
    handle.stream_wait((1, other.handle))
    other.copy(seen.address, block.address, size)
    other.synchronize()
    assert (seen.get() == data).all()
    handle.wait()
    handle.stream_wait(other.handle, device=1)
    with pytest.raises(errors.InvalidArgument, match="whose it is"):
        handle.stream_wait(other.handle)


def test_a_named_stream_and_none() -> None:
    size = 24 * MIB
    source = made(size, 0)
    source.set(np.full(size, 1, np.uint8))
    stuck, other = Stuck(0), Stream(0)
    source.stream = stuck
    back = np.zeros(size, np.uint8)
    t.copy(back, source, stream=t.UNORDERED).wait(60)
    assert (back == 1).all()
    other.fill(source.address, 2, size)
    t.copy(back, source, stream=(0, other.handle)).wait(60)
    assert (back == 2).all()
    stuck.release()


def test_a_plain_copy_is_done_before_its_stream_is() -> None:
    block = Device((4096,))
    stream = Stuck(0, at_once=False)
    first = t.copy(block, np.full(4096, 3, np.uint8), stream=(0, stream.handle))
    stream.hold()
    second = t.copy(block, np.full(4096, 4, np.uint8), stream=(0, stream.handle))
    first.wait(60)
    assert (block.get() == 3).all() and not second.done()
    stream.release()
    second.wait(60)
    assert (block.get() == 4).all()


def test_all_bytes_are_counted_although_a_path_refused_a_chunk() -> None:
    size = 3 * MIB + 17
    data, array = t.pinned(size), made(size, 0)
    data[:] = 5
    before = t.stats()
    simcuda.fail("cuMemcpyAsync", 3, 719, 1)
    handle = t.copy(array, data).wait()
    simcuda.fail(None)
    assert (array.get() == 5).all()
    assert sum(path["bytes"] for path in handle.result().paths) == size
    after = t.stats()
    assert after["bytes"] - before["bytes"] == size and after["failed"] == before["failed"]
    for name, more in [("bytes", size), ("failures", 1)]:
        was, now = (sum(path[name] for path in told["paths"]) for told in (before, after))
        assert now - was == more
