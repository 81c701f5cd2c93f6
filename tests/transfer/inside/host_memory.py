"""Pinned memory, and memory pinned in place."""

import contextlib
import ctypes
import gc
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
from driver import Stream
from memory import MIB, Device, numbers

from glake import _C, errors, simcuda
from glake import transfer as t


class Array(np.ndarray):
    """An array to which weak references can be made."""


def pool_bytes() -> int:
    return int(_C.host_stats()["allocated_bytes.current"])


def test_pinned_arrays() -> None:
    t.default_engine()
    before = pool_bytes()
    array = t.pinned((3, 1000), "float32")
    assert array.shape == (3, 1000) and array.dtype == np.float32 and pool_bytes() > before
    assert _C.place_of(array.ctypes.data) == (-1, True)
    array[:] = 1.5
    block = Device((3, 1000), "float32")
    t.copy(block, array).wait()
    assert (block.get() == 1.5).all()
    row = array[1]
    del array
    gc.collect()
    assert pool_bytes() > before
    del row
    gc.collect()
    assert pool_bytes() == before
    assert t.pinned(0).shape == (0,) and t.pinned((2, 0)).shape == (2, 0)
    for shape, match in [(-1, "shape"), ((2, 0.5), "shape"), ("x", "shape")]:
        with pytest.raises(errors.InvalidArgument, match=match):
            t.pinned(shape)
    with pytest.raises(errors.InvalidArgument, match="objects"):
        t.pinned(3, object)


@pytest.mark.parametrize("background", [False, True])
def test_register_host(background: bool) -> None:
    data = numbers(40 * MIB + 123)[100:]
    with t.register_host(data, background) as pinned:
        assert pinned.wait(60) is pinned and pinned.done()
        assert pinned.progress() == (data.size, data.size)
        assert _C.place_of(data.ctypes.data) == (-1, True)
        assert _C.place_of(data.ctypes.data + data.size - 1) == (-1, True)
        block = Device(data.shape)
        t.copy(block, data).wait()
        assert (block.get() == data).all()
        for wrong in (data, data[4096:]):
            with pytest.raises(errors.InvalidArgument, match="pinned already"):
                t.register_host(wrong)
    assert _C.place_of(data.ctypes.data) == (-1, False)
    pinned.unregister()
    with pytest.raises(errors.InvalidPointer):
        pinned.progress()


def test_several_pieces_and_a_refusal() -> None:
    """Pieces end at multiples of 256 MiB. If the driver refuses the second, the first is undone."""
    memory = np.empty(300 * MIB, np.uint8)
    to_boundary = -memory.ctypes.data % (256 * MIB)
    if to_boundary > 260 * MIB:
        pytest.skip("no boundary inside")
    data = memory[max(0, to_boundary - 4096) : to_boundary + 8192]
    simcuda.reset_calls()
    with t.register_host(data):
        assert simcuda.calls("cuMemHostRegister") == 2
    simcuda.fail("cuMemHostRegister", 2, 2, 1)
    with pytest.raises(errors.DriverError, match="does not pin"):
        t.register_host(data)
    assert _C.place_of(data.ctypes.data) == (-1, False)
    simcuda.fail("cuMemHostRegister", 2, 2, 1)
    late = t.register_host(data, background=True)
    with pytest.raises(errors.DriverError, match="does not pin"):
        late.wait(60)
    assert 0 < late.progress()[0] < data.size
    late.unregister()
    simcuda.fail(None)
    t.register_host(data).unregister()


def test_a_failed_registration_whose_handle_is_gone_can_be_made_again() -> None:
    data = np.zeros(300 * MIB, np.uint8)
    simcuda.fail("cuMemHostRegister", 2, 2, 1)
    with pytest.raises(errors.DriverError):
        t.register_host(data, background=True).wait(60)
    simcuda.fail(None)
    with t.register_host(data) as pinned, pytest.raises(errors.InvalidArgument, match="already"):
        t.register_host(data)
    assert not pinned._open


# Which parts of [0, 1) are pinned. A registration in the background begins like the first.
PARTLY = {
    "front": [(0, 0.5)],
    "back": [(0.5, 1)],
    "both ends": [(0, 0.25), (0.75, 1)],
    "middle": [(0.25, 0.75)],
    "pieces without a gap": [(0, 0.5), (0.5, 1)],
}


@pytest.mark.parametrize("size", [64 << 10, 3 * MIB, 80 * MIB])
@pytest.mark.parametrize("pinned", PARTLY.values(), ids=PARTLY)
def test_partly_pinned_memory_is_copied(size: int, pinned: list[tuple[float, float]]) -> None:
    """A driver, and so simcuda, refuses to copy host memory of which only a part is pinned."""
    memory = np.empty(size + 4096, np.uint8)
    data = memory[-memory.ctypes.data % 4096 :][:size]
    data[:] = numbers(size)
    block, back = Device(data.shape), np.zeros_like(data)
    with contextlib.ExitStack() as registered:
        for begin, end in pinned:
            part = data[int(begin * size) : int(end * size)]
            registered.enter_context(t.register_host(part).wait(60))
        t.copy(block, data).wait()
        t.copy(back, block).wait()
        assert (back == data).all()
        back[:] = 0
        block.set(back)
        t.copy(block, data, stream=t.UNORDERED).wait()
        t.copy(data, block, stream=t.UNORDERED).wait()
        assert (data == block.get()).all() and data.any()


@pytest.mark.parametrize("before", [100, 1000, 4090, 5000, 70_000])
@pytest.mark.parametrize("behind", [0, 100, 70_000])
def test_pinned_ranges_begin_and_end_anywhere(before: int, behind: int) -> None:
    """Ordinary arrays begin within a page. `before`, `behind`: bytes that are not pinned."""
    size = before + 20_000 + behind
    memory = np.empty(size + 2 * 4096, np.uint8)
    data = memory[-memory.ctypes.data % 4096 + 16 + 4096 - before % 4096 :][:size]
    data[:] = numbers(size)
    block, back = Device(data.shape), np.zeros_like(data)
    with t.register_host(data[before : before + 20_000]):
        for cut in (
            size,
            size - behind - 19_990,
        ):  # the whole, and only the start of what is pinned
            t.copy(t.Raw(block.address, cut, 0), data[:cut]).wait()
            t.copy(back[:cut], t.Raw(block.address, cut, 0)).wait()
            assert (back[:cut] == data[:cut]).all()
            back[:] = 0


# Where a pinned range begins in a page, and its bytes.
@pytest.mark.parametrize(
    ("begin", "pinned"), [(100, 558), (2027, 1), (0, 4096), (100, 4096), (4000, 200)]
)
# What is copied, from that page on.
@pytest.mark.parametrize(
    ("first", "size"), [(0, 4096), (2028, 4000), (-4096, 8192), (-4096, 4200), (-4096, 90_000)]
)
def test_a_pinned_range_may_be_smaller_than_a_page(
    begin: int, pinned: int, first: int, size: int
) -> None:
    memory = numbers(128 << 10)
    page = -memory.ctypes.data % 4096 + 8192
    data = memory[page + first :][:size]
    block, back = Device(data.shape), np.zeros_like(data)
    with t.register_host(memory[page + begin :][:pinned]):
        for stream in (t.UNORDERED, (0, 0)):
            back[:] = 0
            block.set(back)
            t.copy(block, data, stream).wait()
            assert (block.get() == data).all()
            data[:] = 0
            t.copy(data, block, stream).wait()
            assert (block.get() == data).all() and data.any()


def test_the_simulator_refuses_a_copy_of_partly_pinned_memory() -> None:
    data, block, stream = numbers(2 * MIB), Device((2 * MIB,)), Stream(0)
    base, half = data.ctypes.data, data.size // 2
    with t.register_host(data[:half]):
        for end in (base, base + half // 2):
            with pytest.raises(AssertionError, match="cuMemcpyAsync: 1$"):  # INVALID_VALUE
                stream.copy(block.address, end, data.size - (end - base))
        stream.copy(block.address, base, half)
        stream.copy(block.address + half, base + half, half)
    stream.synchronize()
    assert (block.get() == data).all()


def test_the_engines_end_unpins() -> None:
    data = numbers(MIB).view(Array)
    address, gone = data.ctypes.data, weakref.ref(data)
    pinned = t.register_host(data, background=True)
    t.default_engine().close()
    t.default_engine()
    assert _C.place_of(address) == (-1, False)
    pinned.unregister()
    t.register_host(data)
    del data, pinned
    gc.collect()
    assert gone() is not None  # pinned, though nobody holds it
    t.default_engine().close()
    gc.collect()
    assert gone() is None


def test_typed_errors() -> None:
    for wrong, match in [
        (np.zeros((4, 4), np.uint8)[:, ::2], "gaps"),
        (np.zeros(0), "no bytes"),
        (Device((64,)), "cuda:0"),
        (Device((64,)).raw(), "cuda:0"),
        (t.pinned(64), "pinned already"),
        ("text", "str has no memory to pin"),
        (None, "NoneType has no memory to pin: pass a CPU tensor"),
        (np.zeros((4, 5)).T, "not C-contiguous"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=match):
            t.register_host(wrong)
    with t.register_host(np.zeros(4096, np.uint8)) as pinned, pytest.raises(ValueError, match="-1"):
        pinned.wait(-1)


def protect(address: int, size: int, how: int) -> None:
    """mprotect(2): 0 for no access, 1 for reading, 3 for writing too."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), how) == 0


# One size below and one above that from which the kernel is asked page by page.
@pytest.mark.parametrize("size", [80, 40 * MIB + 5])
def test_protected_memory_is_found_before_it_is_touched(size: int) -> None:
    pages = mmap.mmap(-1, 64 * MIB)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    block, data = Device((size,)), numbers(size)
    block.set(data)
    inside = 20 * MIB if size > MIB else 0
    at = base + 4096 + 7
    try:
        for how in (1, 0):
            protect(base + 4096 + inside, MIB, how)
            for device in (t.HOST, t.ASK):
                raw = t.Raw(at, size, device)
                with pytest.raises(errors.InvalidPointer, match="may not be written to"):
                    t.copy(raw, block)
                with pytest.raises(errors.InvalidPointer, match="may not be written to"):
                    t.gather(raw, t.Blocks(block.address, size, 1, size, 0))
                if how == 0:
                    with pytest.raises(errors.InvalidPointer, match="may not be read"):
                        t.copy(block, raw)
                else:
                    t.copy(block, raw).wait()
            with pytest.raises(errors.InvalidArgument, match="may not be written to"):
                t.register_host(t.Raw(at, size))
            assert _C.place_of(at) == (-1, False)
            block.set(data)
    finally:
        protect(base, 64 * MIB, 3)
    t.copy(t.Raw(at, size), block).wait()
    assert ctypes.string_at(at, size) == data.tobytes()
    t.register_host(t.Raw(at, size)).unregister()


@pytest.mark.parametrize("size", [1 << 20, 40 * MIB])
def test_a_file_that_was_cut_short_is_found_before_it_is_touched(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    block = Device((size,))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as pages:
        base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        t.copy(block, t.Raw(base, size)).wait()
        left = size // 4 + 100
        os.truncate(path, left)
        end = base + size // 4 + 4096  # the page in which the file ends is there
        for begin in (base + 50, end + 50):
            raw = t.Raw(begin, base + size - begin)
            part = t.Raw(block.address, raw.bytes, 0)
            where = f"{max(begin, end):#x} is mapped, but has no page"
            with pytest.raises(errors.InvalidPointer, match=where):
                t.copy(part, raw)
            with pytest.raises(errors.InvalidPointer, match=where):
                t.copy(raw, part)
            with pytest.raises(errors.InvalidPointer, match=where):
                t.register_host(raw)
        t.copy(t.Raw(block.address, left, 0), t.Raw(base, left)).wait()


def test_memory_that_is_not_there_is_not_pinned() -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.restype, hole = ctypes.c_void_p, 20 * MIB
    base = libc.mmap(
        None, ctypes.c_size_t(32 * MIB), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
    )
    assert libc.munmap(ctypes.c_void_p(base + hole), ctypes.c_size_t(4096)) == 0
    block = Device((32 * MIB,))
    for background in (False, True):
        for address, size, end in [(0x10000, 4096, 0x10000), (base, 32 * MIB, base + hole)]:
            with pytest.raises(
                errors.InvalidPointer, match=f"{end:#x} is no memory of this process"
            ):
                t.register_host(t.Raw(address, size), background)
    with pytest.raises(errors.InvalidPointer, match=f"which ends {hole} bytes on"):
        t.copy(t.Raw(base, block.bytes), block)
    assert libc.munmap(ctypes.c_void_p(base), ctypes.c_size_t(32 * MIB)) == 0
