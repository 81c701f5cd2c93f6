"""Pinned memory, and memory pinned in place."""

import gc
import weakref

import numpy as np
import pytest
from memory import MIB, Device, numbers

from glake import _C, errors, simcuda
from glake import transfer as t


class Array(np.ndarray):
    """Of which weak references can be made."""


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
    """Pieces end at 256 MiB of address; the driver's refusal of the second undoes the first."""
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
        (Device((64,)), "GPU 0"),
        (Device((64,)).raw(), "GPU 0"),
        (t.pinned(64), "pinned already"),
        ("text", "no memory"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=match):
            t.register_host(wrong)
    with t.register_host(np.zeros(4096, np.uint8)) as pinned, pytest.raises(ValueError):
        pinned.wait(-1)
