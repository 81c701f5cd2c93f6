"""glake.reserve(): virtual buffers, on the simulated driver."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
from collections.abc import Iterator

import pytest
import torch

import glake
from glake import _C, errors

MIB = 1 << 20
PAGE = 2 * MIB


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    _C.shutdown()
    for name, value in (("driver", "sim"), ("limit", "64MiB")):
        _C.configure(name, value)
    yield
    gc.collect()
    assert live() == 0
    _C.shutdown()
    for name in ("driver", "limit"):
        _C.configure(name, "")


def live() -> int:
    return int(_C.stats()["allocated_bytes.all.current"])


def test_memory_is_behind_backed_pages_only() -> None:
    buffer = glake.reserve("512GiB")
    assert buffer.nbytes == 512 << 30 and live() == 0
    buffer.back(MIB, 3 * MIB)
    assert (buffer.backed, live()) == (2 * PAGE, 2 * PAGE)
    ctypes.memset(buffer.ptr, 7, 2 * PAGE)
    buffer.unback(MIB, 5 * MIB)  # the first page lies in it in part
    assert buffer.backed == PAGE and buffer.mapped == 2 * PAGE
    assert ctypes.string_at(buffer.ptr + MIB, 1) == b"\7"
    buffer.free()
    assert live() == 0 and "freed" in repr(buffer)
    buffer.free()
    for use in (buffer.back, buffer.unback, lambda: buffer.backed):
        with pytest.raises(errors.InvalidPointer, match="this virtual buffer of .* been freed"):
            use()


def test_unbacked_memory_serves_blocks() -> None:
    with glake.reserve("64MiB") as buffer:
        buffer.back()
        with pytest.raises(errors.OutOfMemory, match="64.00 MiB of it in pages of 1 virtual range"):
            glake.empty("2MiB")
        buffer.unback(0, 32 * MIB)
        with glake.empty("32MiB"):
            assert _C.stats()["glake.physical_bytes"] == 64 * MIB
            with pytest.raises(errors.OutOfMemory):
                buffer.back()
            assert buffer.backed == 32 * MIB
        buffer.back()


def test_tensors_lie_in_it_and_hold_it() -> None:
    buffer = glake.reserve("1GiB")
    buffer.back(0, 4 * PAGE)
    tensor = buffer.tensor(torch.float32, [1024, 256])
    tensor.fill_(3)
    later = buffer.tensor(torch.int16, [5], begin=PAGE)
    later.copy_(torch.arange(5))
    assert tensor.data_ptr() == buffer.ptr and later.data_ptr() == buffer.ptr + PAGE
    with pytest.raises(errors.InvalidPointer, match="held by 2 arrays"):
        buffer.free()
    del buffer
    assert tensor.sum() == 3 * 1024 * 256 and later.tolist() == [0, 1, 2, 3, 4]
    del tensor, later
    gc.collect()
    assert live() == 0 and _C.stats()["glake.virtual_ranges"] == 0


def test_aliases() -> None:
    buffer, other = glake.reserve("16MiB"), glake.reserve("16MiB")
    buffer.back(0, 2 * PAGE)
    other.alias(PAGE, buffer, 0, 2 * PAGE)
    buffer.alias(4 * PAGE, buffer, PAGE, PAGE)
    assert live() == 2 * PAGE and (buffer.shared, other.shared) == (3 * PAGE, 2 * PAGE)
    ctypes.memset(buffer.ptr + PAGE, 9, PAGE)
    for place in (other.ptr + 2 * PAGE, buffer.ptr + 4 * PAGE):
        assert ctypes.string_at(place, 1) == b"\11"
    buffer.free()
    assert live() == 2 * PAGE and ctypes.string_at(other.ptr + 2 * PAGE, 1) == b"\11"


def test_it_copies_like_any_memory() -> None:
    from glake import transfer

    buffer = glake.reserve("64MiB")
    buffer.back(0, 12 * MIB)
    buffer.unback(4 * MIB, 6 * MIB)
    host = torch.arange(4 * MIB, dtype=torch.int32).to(torch.uint8)
    with transfer.Engine():
        inside = buffer.tensor(torch.uint8, [4 * MIB])
        done = transfer.copy(transfer.Raw(buffer.ptr, 4 * MIB, 0), host)
        done.wait()
        assert torch.equal(inside, host)
        with pytest.raises(errors.InvalidPointer):
            transfer.copy(
                transfer.Raw(buffer.ptr, 5 * MIB, 0), torch.zeros(5 * MIB, dtype=torch.uint8)
            )
        with pytest.raises(errors.InvalidPointer):
            transfer.copy(transfer.Raw(buffer.ptr + 4 * MIB, MIB, 0), host[:MIB]).wait()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda b: b.back(-1), errors.InvalidArgument),
        (lambda b: b.back(0, b.nbytes + 1), errors.InvalidArgument),
        (lambda b: b.back(5, 4), errors.InvalidArgument),
        (lambda b: b.unback("a"), errors.WrongType),
        (lambda b: b.back(0, 1, "stream"), errors.InvalidArgument),
        (lambda b: b.alias(0, b, PAGE, PAGE), errors.InvalidArgument),
        (lambda b: b.alias(0, 5, PAGE, PAGE), errors.WrongType),
        (lambda b: b.alias(0, b, PAGE, 0), errors.InvalidArgument),
        (lambda b: b.tensor(torch.float32, [b.nbytes]), errors.InvalidArgument),
        (lambda b: b.tensor(torch.float32, [1], begin=2), errors.InvalidArgument),
        (lambda b: b.tensor(torch.float32, [-1]), errors.InvalidArgument),
        (lambda b: b.tensor("float32", [1]), errors.WrongType),
        (lambda b: b.figures(0, b.nbytes + 1), errors.InvalidArgument),
        (lambda b: glake.reserve(1 << 62), errors.InvalidArgument),
        (lambda b: copy.copy(b), errors.WrongType),
        (lambda b: _C.free(b.ptr), errors.InvalidPointer),
        (lambda b: glake.share(b.ptr), errors.InvalidPointer),
        (lambda b: glake.reserve(0), errors.InvalidArgument),
        (lambda b: glake.reserve("1GiB", device=9), errors.InvalidDevice),
    ],
)
def test_wrong_use(call: object, error: type[Exception]) -> None:
    with glake.reserve("8MiB") as buffer, pytest.raises(error):
        call(buffer)  # type: ignore[operator]


def test_an_alias_replaces() -> None:
    with glake.reserve("8MiB") as buffer:
        buffer.back(0, 2 * PAGE)
        ctypes.memset(buffer.ptr, 5, PAGE)
        buffer.alias(PAGE, buffer, 0, PAGE)
        assert live() == PAGE and buffer.figures(PAGE, 2 * PAGE) == (PAGE, PAGE, PAGE)
        assert ctypes.string_at(buffer.ptr + PAGE, 1) == b"\5"


def test_a_tensor_of_backed_pages_can_be_copied() -> None:
    buffer = glake.reserve("1GiB")
    buffer.back(PAGE, 3 * PAGE)
    tensor = buffer.tensor(torch.int32, [PAGE // 4, 2], begin=PAGE).fill_(6)
    assert torch.equal(copy.deepcopy(tensor), tensor)
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
    assert buffer.tensor(torch.int32, [0, 3]).shape == (0, 3)


@pytest.mark.parametrize("mode", ["guard", "poison", "trace", "guard,poison,trace"])
def test_debug_modes_find_nothing_in_pages(mode: str) -> None:
    _C.shutdown()
    _C.configure("driver", "sim")
    _C.configure("debug", mode)
    try:
        glake.empty("24MiB").free()
        with glake.reserve("64MiB") as buffer:
            buffer.back(0, 24 << 20)
            ctypes.memset(buffer.ptr, 1, 24 << 20)
            _C.check(0)
            buffer.unback(0, 12 << 20)
            buffer.back(0, 24 << 20)
            ctypes.memset(buffer.ptr, 2, 24 << 20)
            _C.check(0)
    finally:
        _C.shutdown()
        _C.configure("debug", "")
        _C.configure("driver", "sim")


def test_a_dropped_buffer_in_use_is_freed_later() -> None:
    from glake import transfer

    host = torch.zeros(32 << 20, dtype=torch.uint8)
    with transfer.Engine():
        buffer = glake.reserve("64MiB")
        buffer.back(0, 32 << 20)
        copied = transfer.copy(
            transfer.Raw(buffer.ptr, 32 << 20, 0), host, stream=transfer.UNORDERED
        )
        del buffer
        copied.wait()
    glake.reserve(1).free()
    assert live() == 0


class Stream:
    """A stream as CuPy has it, which ends with its object."""

    def __init__(self) -> None:
        with glake.empty(1):  # opens the device
            self._driver = ctypes.CDLL(_C.driver_path())
        self._context, handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self._call("cuCtxSetCurrent", self._context)
        self._call("cuStreamCreate", ctypes.byref(handle), 1)
        self.ptr = handle.value

    def _call(self, name: str, *arguments: object) -> None:
        assert getattr(self._driver, name)(*arguments) == 0, name

    def begin(self) -> None:
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.ptr), 0)

    def end(self) -> None:
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(self.ptr), ctypes.byref(graph))
        self._call("cuGraphDestroy", graph)

    def __del__(self) -> None:
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(self.ptr))
        self._call("cuDevicePrimaryCtxRelease_v2", 0)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dropped", [True, False])
def test_a_capture_that_has_ended_holds_up_no_free(own: bool, dropped: bool) -> None:
    """glake may not ask about such a stream unless it is named, and remembers a capture."""
    stream = Stream()
    buffer = glake.reserve("8MiB", stream=stream if own else 0)
    stream.begin()
    buffer.back(0, PAGE, stream)
    with pytest.raises(errors.InvalidArgument, match="while a stream is being captured"):
        buffer.free()
    stream.end()
    if dropped:
        del buffer
        gc.collect()
    else:
        buffer.free()
    assert live() == 0 and _C.stats()["glake.virtual_ranges"] == 0


def test_a_range_is_freed_after_the_capture_in_which_it_was_dropped() -> None:
    stream = Stream()
    buffer = glake.reserve("8MiB", stream=stream)
    stream.begin()
    buffer.back(0, PAGE)
    del buffer
    gc.collect()
    assert live() == PAGE
    stream.end()
    glake.reserve(1).free()
    assert live() == 0


def test_an_empty_part_is_nothing() -> None:
    with glake.reserve("8MiB") as buffer:
        buffer.back(4, 4)
        buffer.unback(4, 4)
        assert buffer.backed == 0


def test_nothing_is_lost_without_a_free() -> None:
    glake.reserve("8MiB").back()
    gc.collect()
    assert live() == 0
