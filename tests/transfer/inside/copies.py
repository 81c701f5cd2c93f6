"""What can be copied, and what is refused."""

import array
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from driver import Stream, Stuck
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import MIB, Device, numbers

import glake
from glake import _C, errors, simcuda
from glake import transfer as t
from glake.transfer import array_memory


@pytest.mark.parametrize("size", [1, 3, 4096, MIB + 1, 16 * MIB + 13])
def test_raw_memory_there_and_back(size: int) -> None:
    data, back, block = numbers(size), np.zeros(size, np.uint8), Device((size,))
    handle = t.copy(block.raw(), data).wait()
    assert handle.done() and handle.progress() == (size, size)
    assert t.copy(back, t.Raw(block.address, size)).result().bytes == size
    assert (back == data).all()


_floats = np.arange(24, dtype=np.float32)
_read_only = _floats.copy()
_read_only.setflags(write=False)


@pytest.mark.parametrize(
    "given",
    [
        _floats,
        _floats[5:],
        _floats[::-2],
        _floats.reshape(4, 6).T,
        _floats.reshape(2, 3, 4)[:, :1],
        _floats.astype(">f4"),
        _floats.astype("M8[s]"),
        np.broadcast_to(_floats, (3, 24)),
        np.zeros((1, 5))[:, ::2],
        np.zeros(3, [("a", "i4"), ("b", "f8")]),
        np.zeros(3, "U4"),
        np.array(3.0),
        _read_only,
    ],
    ids=str,
)
def test_numpys_own_arrays_are_read_as_any_others(given: np.ndarray) -> None:
    class Other:
        dtype, __array_interface__ = given.dtype, given.__array_interface__

    other = array_memory.memory_of(Other())
    quick = array_memory.memory_of(given)  # by the name that its dtype now has
    for name in ("address", "shape", "strides", "item", "device", "dtype", "stream", "read_only"):
        assert getattr(quick, name) == getattr(other, name)
    assert (quick.bytes, quick.contiguous) == (given.nbytes, given.flags.c_contiguous)
    with pytest.raises(errors.InvalidArgument, match="Python objects"):
        array_memory.memory_of(np.zeros(3, object))


@pytest.mark.parametrize("size", [4097, 32 * MIB])
def test_between_gpus(size: int) -> None:
    data, one, two = numbers(size), Device((size,)), Device((size,), gpu=3)
    one.set(data)
    t.copy(two, one).wait()
    assert (two.get() == data).all()


def test_large_copies_take_several_paths() -> None:
    data, block = numbers(32 * MIB), Device((32 * MIB,))
    many = t.copy(block, data).result()
    assert len(many.paths) > 1 and sum(path["bytes"] for path in many.paths) == data.size
    direct = t.copy(block, data, direct=True).result()
    assert direct.paths == () and many.rate > 1.5 * 26 and (block.get() == data).all()
    assert t.stats()["transfers"] >= 1


def test_checksums_find_a_flipped_bit() -> None:
    data, block = numbers(32 * MIB), Device((32 * MIB,))
    simcuda.corrupt_copy("host", "g0")
    result = t.copy(block, data, checksum=True).result()
    assert result.parts[0]["verified"] and (block.get() == data).all()
    simcuda.corrupt_copy("host", "g0")
    assert "verified" in t.copy(block, data).result().parts[0] and (block.get() != data).any()
    with pytest.raises(errors.InvalidArgument, match="checksum"):
        t.copy(block, data, direct=True, checksum=True)


def test_buffers_and_dlpack() -> None:
    block = Device((64,))
    t.copy(block, bytes(range(64))).wait()
    assert block.get().tolist() == list(range(64))
    back = bytearray(64)
    t.copy(back, block).wait()
    assert back == bytes(range(64))
    floats = array.array("d", [0.0] * 8)
    t.copy(floats, block).wait()
    assert floats.tobytes() == bytes(back)

    class Producer:
        """A DLPack producer, from before version 1 or after."""

        def __init__(self, value: np.ndarray, old: bool) -> None:
            self.value, self.old = value, old

        def __dlpack__(self, **given: object) -> object:
            if self.old and given:
                raise TypeError
            return self.value.__dlpack__(**given)

    for old in (True, False):
        matrix = np.zeros((6, 4), np.float32)
        source = np.arange(24, dtype=np.float32).reshape(4, 6)
        gpu = Device((6, 4), "float32")
        t.copy(gpu, Producer(source.T, old)).wait()
        assert (gpu.get() == source.T).all()
        t.copy(Producer(matrix, old), gpu).wait()
        assert (matrix == source.T).all()
    matrix.flags.writeable = False
    with pytest.raises(errors.InvalidArgument, match="read-only"):
        t.copy(Producer(matrix, old=False), gpu)


def test_nothing_to_copy() -> None:
    for shape in [(0,), (3, 0), (0, 5)]:
        handle = t.copy(Device(shape), np.zeros(shape, np.uint8))
        assert handle.done() and handle.wait().result().bytes == 0
    point = Device((), "float64")
    t.copy(point, np.array(2.5)).wait()
    assert point.get() == 2.5


def test_short_runs_are_made_contiguous_first() -> None:
    data = np.arange(300 * 400, dtype=np.int32).reshape(300, 400)
    block = Device((400, 300), "int32")
    result = t.copy(block, data.T).result()
    assert result.made_contiguous and (block.get() == data.T).all()
    assert not t.copy(Device((300, 400), "int32"), data).result().made_contiguous
    batch = t.copy_batch([(block, data.T), (Device((300, 400), "int32"), data)]).result()
    assert batch.made_contiguous


def refused(match: str, dst: object, src: object, **more: object) -> None:
    with pytest.raises(errors.GlakeError, match=match) as caught:
        t.copy(dst, src, **more)
    assert isinstance(caught.value, (errors.InvalidArgument, errors.InvalidPointer, ValueError))


@pytest.mark.parametrize("kind", [np.int64, np.uint32, np.array, torch.tensor])
def test_whole_numbers_of_any_library(kind: Any) -> None:
    data, block = numbers(4096), Device((4096,))
    raw = t.Raw(kind(block.address) if kind is np.int64 else block.address, kind(4096), kind(0))
    t.copy(raw, data, stream=(kind(0), kind(0))).wait()
    assert (block.get() == data).all()
    blocks = t.Blocks(block.address, kind(1024), kind(4), kind(1024), kind(0))
    got = np.zeros((2, 1024), np.uint8)
    t.gather(got, blocks, [1, 3]).wait()
    assert (got == data.reshape(4, 1024)[[1, 3]]).all()
    assert t.explain(dst="cuda:0", src="cpu", nbytes=kind(1 << 20)).bytes == 1 << 20
    assert t.pinned((kind(2), kind(3))).shape == (2, 3)
    assert t.Offloader(kind(1 << 20)).limit == 1 << 20
    for wrong in (True, 1.0, np.float64(4), "4", np.bool_(True)):
        with pytest.raises(errors.InvalidArgument):
            t.copy(t.Raw(block.address, wrong), data[:1])
        with pytest.raises(errors.InvalidArgument):
            t.copy(block, data, stream=(wrong, 0))
        with pytest.raises(errors.InvalidArgument):
            t.gather(got, t.Blocks(block.address, 1024, wrong, 1024))
        if wrong != "4":
            with pytest.raises(errors.InvalidArgument):
                t.Offloader(wrong)


def test_typed_errors() -> None:
    block, other = Device((1024,)), Device((1024,))
    host = np.zeros(1024, np.uint8)
    refused("equal sizes", block, host[:1000])
    refused("equal sizes", host[:1000], block)
    refused("overlap", t.Raw(block.address, 512), t.Raw(block.address + 256, 512))
    refused("host memory", host, np.ones(1024, np.uint8))
    refused("no memory to copy", block, 3)
    refused("no memory to copy", block, None)
    refused("converts nothing", Device((4,), "float32"), np.zeros(4, np.int32))
    square = np.zeros((4, 4), np.uint8)
    refused("does not fit", Device((4, 4)).like(square[:, :2], square), host[:8])
    refused("Python objects", block, np.zeros(4, object))
    refused("no cuda:99", t.Raw(block.address, 8, 99), host[:8])
    refused("neither", t.Raw(block.address, 8, -7), host[:8])
    refused("address", t.Raw(0, 8), host[:8])
    refused("not a number", t.Raw(block.address, -1), host[:8])
    refused("no memory the driver or this process knows", t.Raw(64, MIB), np.zeros(MIB, np.uint8))
    refused("no stream", block, other, stream="soon")
    refused("no stream", block, other, stream=1.5)
    refused("masked", block, np.ma.masked_array(host, host))
    host.flags.writeable = False
    refused("read-only", host, block)
    block.read_only = True
    refused("read-only", block, other)
    refused("read-only", bytes(1024), other)


def test_ends_are_where_they_are_said_to_be() -> None:
    block, data = Device((2 * MIB,), gpu=1), np.zeros(2 * MIB, np.uint8)
    with pytest.raises(errors.InvalidDevice, match="cuda:1, not memory of cuda:2"):
        t.copy(t.Raw(block.address, 2 * MIB, 2), data)
    with pytest.raises(errors.InvalidPointer, match="no memory the driver|beyond"):
        t.copy(t.Raw(block.address, 64 * MIB, 1), np.zeros(64 * MIB, np.uint8))


def test_raw_memory_is_looked_into_at_any_size() -> None:
    size = 4096
    block, other, data = Device((size,)), Device((size,), gpu=1), numbers(size)
    for address, device in [(12345678, 0), (12345678, -1), (block.address + (1 << 40), 0)]:
        refused("no memory|never given out", t.Raw(address, size, device), block)
        refused("no memory|never given out", block, t.Raw(address, size, device))
        with pytest.raises(errors.InvalidPointer, match="^(cpu|cuda:0) to cuda:0: "):
            t.copy_batch([(other, block), (block, t.Raw(address, size, device))])
    for address, said, match in [
        (data.ctypes.data, 0, "host memory, not memory of cuda:0"),
        (block.address, -1, "memory of cuda:0, not host memory"),
        (block.address, 1, "memory of cuda:0, not memory of cuda:1"),
    ]:
        with pytest.raises(errors.InvalidDevice, match=match):
            t.copy(other, t.Raw(address, size, said))


def test_raw_memory_ends_with_its_block() -> None:
    one, two = _C.malloc(512, 0), _C.malloc(512, 0)
    data = numbers(2 * MIB)
    for size in (513, 1024, 65536, 2 * MIB):
        with pytest.raises(errors.InvalidPointer, match="ends 512 bytes on"):
            t.copy(t.Raw(min(one, two), size, 0), data[:size])
    t.copy_batch([(t.Raw(at, 512, 0), data[:512]) for at in (one, two)]).wait()
    large = _C.malloc(64 * MIB, 0)
    t.copy(t.Raw(large + 64 * MIB - 5, 5, 0), data[:5]).wait()
    for address in (one, two, large):
        _C.free(address)
        for size in (16, 512, 2 * MIB):
            with pytest.raises(errors.InvalidPointer, match="freed already"):
                t.copy(t.Raw(address, size, 0), data[:size])


def test_destinations_of_a_batch_differ() -> None:
    block, data = Device((512,)), numbers(1024)
    with pytest.raises(errors.InvalidArgument, match="two destinations overlap"):
        t.copy_batch([(block, data[:512]), (block, data[512:])])
    with pytest.raises(errors.InvalidArgument, match="^copy_batch: number 1: .*513"):
        t.copy_batch([(block, data[:512]), (block, data[:513])])
    with pytest.raises(errors.InvalidArgument, match="^copy_batch: number 1: "):
        t.copy_batch([(block, data[:512]), (None, data[:512])])


def test_items_are_named_as_numpy_names_them() -> None:
    block, fields = Device((96,), "int32"), np.zeros(8, [("a", "<i4"), ("b", "<f8")])
    refused("the source, raw memory at 0x[0-9a-f]+, has 64:", fields, t.Raw(block.address, 64))
    refused(r"\[\('a', '<i4'\), \('b', '<f8'\)\]", fields, block)
    refused(r"\|S5\[2\]", np.zeros(2, "S5"), block)
    strings = np.array([b"glake", b"lakes"])
    kept = Device(strings.shape, strings.dtype)
    t.copy(kept, strings).wait()
    assert (kept.get() == strings).all()


class Told:
    """A GPU array that has only __cuda_array_interface__."""

    def __init__(self, memory: Device, **facts: object) -> None:
        self.memory, told = memory, memory.__cuda_array_interface__ | facts
        self.__cuda_array_interface__ = {k: v for k, v in told.items() if v is not ...}


@pytest.mark.parametrize("code", "?hHiIlLqQefdFD")
def test_equal_types_have_one_name(code: str) -> None:
    dtype, count = np.dtype(code), 20
    source = numbers(count * dtype.itemsize).view(dtype) if code != "?" else np.ones(count, "?")
    block, told = Device((count,), code), Told(Device((count,), code))
    views = [source, memoryview(source)]
    if code in "hHiIlLqQfd":
        views.append(array.array(code, source.tobytes()))
    if code not in "eFD":
        views.append(np.ctypeslib.as_ctypes(source))
    for view in views:
        for gpu in (block, told):
            back = np.zeros(count, dtype)
            t.copy(gpu, view).wait()
            t.copy(memoryview(back), gpu).wait()
            assert back.tobytes() == source.tobytes()
    tensor = torch.zeros(count, dtype=getattr(torch, dtype.name))
    t.copy(told, views[-1]).wait()
    t.copy(tensor, told).wait()
    assert tensor.numpy().tobytes() == source.tobytes()


def test_other_types_stay_refused() -> None:
    floats, fields = Device((8,), "float32"), np.zeros(8, [("a", "<i4"), ("b", "<f8")])
    for other in ("int32", ">f4", "<f8", "S4", "U1"):
        refused("converts nothing|equal sizes", floats, memoryview(np.zeros(8, other)))
        refused("converts nothing|equal sizes", floats, Told(Device((8,), other)))
    t.copy(Device((8,), ">f4"), memoryview(np.zeros(8, ">f4"))).wait()
    t.copy(Told(Device((8,), "U3")), np.zeros(8, "U3")).wait()
    t.copy(Device((8,), fields.dtype), memoryview(fields)).wait()
    refused("Python objects", Device((64,)), memoryview(np.zeros(8, object)))


def test_interfaces_that_are_none_are_told_why() -> None:
    memory, data = Device((8,), "float32"), np.zeros(8, np.float32)
    for match, facts in {
        "no 'typestr'": {"typestr": ...},
        "no 'data'": {"data": ...},
        "typestr is 3,": {"typestr": 3},
        "typestr is 'float32'": {"typestr": "float32"},
        "typestr is '<f5'": {"typestr": "<f5"},
        "shape is 8": {"shape": 8},
        "shape is .-8": {"shape": (-8,)},
        "data is 5": {"data": 5},
        "data is .-5": {"data": (-5, False)},
        "strides are .4, 4": {"strides": (4, 4)},
        "stream is 'now'": {"stream": "now"},
    }.items():
        refused(f"__cuda_array_interface__ of Told.*{match}", Told(memory, **facts), data)
    told = Told(memory, typestr=...)
    told.dtype = memory.dtype
    refused("no 'typestr'", told, data)


def cuda_array(address: int, size: int, typed: bool = True, **facts: Any) -> Any:
    """An object with a CUDA array interface. `typed`: it has a dtype too."""
    known = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3, **facts}
    values = {"__cuda_array_interface__": known, **({"dtype": np.dtype("u1")} if typed else {})}
    return type("Other", (), values)()


@pytest.mark.parametrize("typed", [True, False])
def test_interfaces_of_other_libraries(typed: bool) -> None:
    block, data = Device((1000,)), numbers(1000)

    def other(address: int = block.address, **facts: Any) -> Any:
        return cuda_array(address, 1000, typed, **facts)

    t.copy(other(stream=np.int64(1)), data).wait()
    assert (block.get() == data).all()
    for stream in ("abc", 1.5, True):
        refused("its stream is", other(stream=stream), data)
    refused("its strides are", other(strides=(1 << 70,)), data)
    for address in (1 << 70, "abc", -1):
        refused("its data is", other(address), data)
    refused("no memory of a GPU", other(data.ctypes.data, stream=1), data.copy())


def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)])
    refused("nested", nested, np.zeros(20, np.uint8))


def test_what_is_not_contiguous_is_called_so() -> None:
    block, square = Device((16,)), np.zeros((4, 4), np.uint8)
    for loose in (np.asfortranarray(square), square.T, np.zeros((4, 8), np.uint8)[:, ::2]):
        refused("not C-contiguous: the source", block.raw(), loose)
        refused("not C-contiguous: the destination", loose, block.raw())
    with pytest.raises(errors.InvalidArgument, match="is not C-contiguous"):
        t.gather(np.zeros((5, 4), np.uint8).T, t.Blocks(block.address, 4, 4, 4, 0))


def test_a_flag_is_true_or_false() -> None:
    block, data = Device((16,)), np.zeros(16, np.uint8)
    refused("checksum 'no': True or False", block, data, checksum="no")
    refused("direct 1: True or False", block, data, direct=1)
    with pytest.raises(errors.InvalidArgument, match="background 'no'"):
        t.register_host(data, background="no")


def test_expanded_and_too_many_pieces() -> None:
    wide = Device((512, 512))
    whole = np.zeros((512, 512), np.uint8)
    expanded = wide.like(np.broadcast_to(whole[0], (512, 512)), whole)
    refused("expanded", expanded, whole)
    t.copy(wide, np.broadcast_to(numbers(512), (512, 512))).wait()
    assert (wide.get() == numbers(512)).all()
    refused("parts", wide.like(whole[:, ::2], whole), np.zeros((512, 256), np.uint8))


def test_freed_while_it_is_copied() -> None:
    address = _C.malloc(32 * MIB)
    data = numbers(32 * MIB)
    handle = t.copy(t.Raw(address, data.size), data)
    with pytest.raises(errors.InvalidPointer, match="is being copied"):
        _C.free(address)
    handle.wait()
    _C.free(address)


def is_live(address: int) -> bool:
    try:
        return _C.block_info(address)[0] > 0
    except errors.InvalidPointer:
        return False


def copied_while(step: Callable[[list[glake.Buffer]], bool]) -> int:
    """Where a buffer was, to which a copy in no stream's order went that is done now. `step` came
    beside the copy, and says whether it came in time: now and then the copy is done before."""
    data = numbers(32 * MIB)
    for _ in range(100):
        held = [glake.empty("32MiB")]
        address = held[0].ptr
        handle = t.copy(t.Raw(address, data.size), data, t.UNORDERED)
        in_time = step(held)
        handle.wait()
        if in_time:
            return address
    raise AssertionError("every copy was done before it")


def test_a_buffer_whose_free_is_refused_keeps_its_block() -> None:
    kept: list[glake.Buffer] = []

    def freed(held: list[glake.Buffer]) -> bool:
        try:
            held[0].free()
        except errors.InvalidPointer as error:
            assert "is being copied" in str(error)
            kept.append(held[0])
        return bool(kept)

    address = copied_while(freed)
    assert kept[0].ptr == address and is_live(address)
    kept[0].free()
    assert not is_live(address)


def test_a_buffer_that_is_dropped_while_it_is_copied_is_freed_later() -> None:
    def dropped(held: list[glake.Buffer]) -> bool:
        address = held[0].ptr
        held.clear()
        return is_live(address)

    address = copied_while(dropped)
    assert is_live(address)
    glake.empty("1MiB").free()
    assert not is_live(address)


def test_batch_across_places() -> None:
    data = [numbers(n, seed) for seed, n in enumerate([10, 5000, 3 * MIB, 2 * MIB, 0])]
    blocks = [Device(one.shape, gpu=gpu) for gpu, one in zip([0, 1, 1, 2, 0], data, strict=True)]
    handle = t.copy_batch(zip(blocks, data, strict=True)).wait()
    assert handle.bytes == sum(one.size for one in data)
    # Several transfers need not begin together, so there is no rate of all.
    assert handle.result().rate == 0 and len(handle.result().parts) == 3
    back = [np.zeros_like(one) for one in data]
    raws = [t.Raw(block.address, block.bytes) for block in blocks]
    t.copy_batch(zip(back, raws, strict=True)).wait()
    assert all((one == other).all() for one, other in zip(back, data, strict=True))
    assert t.copy_batch([]).wait().bytes == 0
    with pytest.raises(errors.InvalidArgument):
        t.copy_batch([(blocks[0], data[0]), (blocks[1], data[0])])


def test_a_batch_that_fails_half_way_gives_a_handle_of_what_began() -> None:
    data, back = numbers(MIB), np.zeros(MIB, np.uint8)
    first, second = Device(data.shape).set(data), Device(data.shape, gpu=1)
    simcuda.fail("cuMemcpyAsync", 2, 2, 1)
    small, other = back[:1000], t.Raw(second.address, 1000, 1)
    with pytest.raises(errors.DriverError) as told:
        t.copy_batch([(small, t.Raw(first.address, 1000, 0)), (other, data[:1000])], t.UNORDERED)
    simcuda.fail(None)
    begun = told.value.begun
    assert isinstance(begun, t.Transfer)
    begun.wait()
    assert begun.bytes == begun.result().bytes == 1000 and begun.progress() == (1000, 1000)
    assert (small == data[:1000]).all()
    with pytest.raises(errors.InvalidPointer) as told_before:
        t.copy_batch([(small, t.Raw(12345, 1000))])
    assert told_before.value.begun is None


def refused_half_way(stream: tuple[int, int]) -> tuple[Device, str]:
    """The destination of a copy whose first part the driver takes, and what the error says."""
    source, block = t.pinned((2, 1000)), Device((2, 2000))
    source[:] = 7
    block.set(np.zeros((2, 2000), np.uint8))
    whole = np.zeros((2, 2000), np.uint8)
    simcuda.fail("cuMemcpyBatchAsync", 1, 801, 1)  # not supported
    simcuda.fail("cuMemcpyAsync", 2, 2, 1)
    try:
        with pytest.raises(errors.DriverError, match="refused a copy of 2000 bytes") as told:
            t.copy(block.like(whole[:, :1000], whole), source, stream)
    finally:
        simcuda.fail(None)
    assert told.value.begun is None
    source[:] = 9  # nobody reads it any more
    return block, str(told.value)


def test_what_was_enqueued_of_a_refused_copy_is_done_when_the_call_returns() -> None:
    stream = Stuck(0)
    threading.Timer(0.2, stream.release).start()
    block, text = refused_half_way((0, stream.handle))
    assert "it took 1000 of the bytes, which are copied" in text
    stream.synchronize()
    assert (block.get()[0, :1000] == 7).all() and block.get().sum() == 7000


def test_a_refused_copy_in_a_capture_does_not_wait() -> None:
    stream = Stream(0)
    stream.begin_capture()
    block, text = refused_half_way((0, stream.handle))
    stream.end_capture()
    assert "it took 1000 of the bytes, which are in the captured graph" in text
    assert not block.get().any()


def test_overlaps_of_memory_with_and_without_an_owner_are_found() -> None:
    data, block = numbers(4096), glake.empty(4096)
    raw = t.Raw(block.ptr, 4096, 0)
    with pytest.raises(errors.InvalidArgument, match="overlap|twice|written"):
        t.copy_batch([(raw, data), (block, data.copy())], t.UNORDERED)


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[slice], list[int]]:
    """(shape of the whole, order of its axes, slices, shape of the part) of a strided array."""
    part = draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
    whole, cuts = [], []
    for extent in part:
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        length = before + max(0, (extent - 1) * abs(step) + 1 if extent else 0) + after
        indices = range(before, before + extent * abs(step), abs(step))
        first, last = (indices[0], indices[-1]) if extent else (0, -1)
        cuts.append((first, last, step, extent))
        whole.append(max(length, 1))
    order = draw(st.permutations(range(len(part))))
    slices = []
    for first, last, step, extent in cuts:
        if extent == 0:
            slices.append(slice(0, 0))
        elif step > 0:
            slices.append(slice(first, last + 1, step))
        else:
            slices.append(slice(last, first - 1 if first else None, step))
    return tuple(whole), tuple(order), slices, part


def strided(given: tuple, fill: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the whole array, its axes in the given order in memory; the part)."""
    shape, order, slices, _ = given
    memory = fill[: int(np.prod(shape))].reshape([shape[axis] for axis in order])
    whole = memory.transpose(np.argsort(order)) if shape else memory
    return memory, whole[(*slices, ...)]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.data(), st.sampled_from(["<u1", "<i2", "<f4", "<c16"]), st.booleans())
def test_strided_copies_equal_numpys(data: st.DataObject, dtype: str, to_gpu: bool) -> None:
    to, of = data.draw(views()), data.draw(views())
    of = of if to[3] == of[3] else to
    room = 4096
    fill = numbers(room * np.dtype(dtype).itemsize, 1).view(dtype)
    old = numbers(room * np.dtype(dtype).itemsize, 2).view(dtype)
    target_memory, target = strided(to, old.copy())
    source_memory, source = strided(of, fill)
    gpu_memory = target_memory if to_gpu else source_memory
    block = Device(gpu_memory.shape, dtype).set(gpu_memory)
    expected_memory, expected = strided(to, old.copy())
    np.copyto(expected, source)
    if to_gpu:
        t.copy(block.like(target, target_memory), source).wait()
        assert block.get().tobytes() == np.ascontiguousarray(expected_memory).tobytes()
    else:
        t.copy(target, block.like(source, source_memory)).wait()
        assert target_memory.tobytes() == expected_memory.tobytes()
