"""glake.empty(): blocks for Python, and their DLPack capsules, on the simulated driver."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

import glake
from glake import _C, errors
from glake.allocator import buffer as buffers
from glake.transfer import dlpack

MIB = 1 << 20


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _C.shutdown()
    for name, value in (("driver", "sim"), ("limit", "64MiB")):
        _C.configure(name, value)
    yield
    gc.collect()
    assert live() == 0
    _C.shutdown()
    for name in ("driver", "limit", "policy"):
        _C.configure(name, "")


def live() -> int:
    return int(_C.stats()["allocated_bytes.all.current"])


def test_it_lives_as_long_as_it_is_held() -> None:
    buffer = glake.empty("3MiB")
    assert len(buffer) == buffer.nbytes == 3 * MIB and live() == 3 * MIB
    assert _C.block_info(buffer.ptr)[:2] == (3 * MIB, 0)
    assert f"{buffer.ptr:#x}" in repr(buffer) and "cuda:0" in repr(buffer)
    del buffer
    assert live() == 0
    with glake.empty(1000, device="cuda:0") as inside:
        assert live() == 1024
    assert live() == 0 and "freed" in repr(inside)
    inside.free()
    for use in (lambda: inside.ptr, inside.__dlpack__, lambda: inside.record_stream(1)):
        with pytest.raises(errors.InvalidPointer, match="has been freed"):
            use()


def test_another_gpus_default_stream_has_no_handle() -> None:
    def stream(handle: int, of: int) -> SimpleNamespace:
        return SimpleNamespace(cuda_stream=handle, device_index=of)

    with glake.empty(MIB) as buffer:
        buffer.record_stream(stream(0, 0))
        for handle in (0, 2):
            with pytest.raises(errors.InvalidArgument, match="the default stream of GPU 1 has no"):
                buffer.record_stream(stream(handle, 1))


@pytest.mark.parametrize(("kind", "bytes_"), [(False, 0), (True, 4), ("vmm", 4), ("legacy", 4)])
def test_contiguous(kind: bool | str, bytes_: int) -> None:
    with glake.empty(3 * MIB, contiguous=kind):
        assert _C.stats()["glake.contiguous_bytes"] == bytes_ * MIB


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1)])
def test_a_capsule_says_what_and_holds_it(version: tuple[int, int] | None) -> None:
    buffer = glake.empty(5 * MIB)
    made = buffer.__dlpack__(max_version=version)
    said = dlpack.read(made)
    assert (said.address, said.shape, said.strides) == (buffer.ptr, (5 * MIB,), (1,))
    assert (said.dtype, said.device_type, said.device) == ("uint8", dlpack.CUDA, 0)
    assert not said.read_only and buffer.__dlpack_device__() == (dlpack.CUDA, 0)
    with pytest.raises(errors.InvalidPointer, match="held by 1 arrays made of it"):
        buffer.free()
    del buffer
    assert live() == 5 * MIB
    del made
    assert live() == 0


def test_the_end_of_a_block_keeps_the_exception_that_ends_it() -> None:
    held: list[object] = []

    def fails(error: Exception | None) -> None:
        with glake.empty(MIB) as buffer:
            held.append(buffer.__dlpack__())
            if error is not None:
                raise error

    with pytest.raises(KeyError, match="the program's own"):
        fails(KeyError("the program's own"))
    with pytest.raises(errors.InvalidPointer, match="held by 1 arrays"):
        fails(None)
    assert live() == 2 * MIB
    held.clear()


def test_array_interface() -> None:
    with glake.empty(MIB, stream=1) as buffer:
        said = buffer.__cuda_array_interface__
        assert said["data"] == (buffer.ptr, False) and said["shape"] == (MIB,)
        assert said["typestr"] == "|u1" and said["stream"] == 1


def test_another_stream_waits_and_is_recorded() -> None:
    with glake.empty(MIB) as buffer:
        calls = dict(_C.stats())
        for same in (None, 1, -1):
            buffer.__dlpack__(stream=same)
        assert _C.stats()["glake.driver_calls.wait"] == calls["glake.driver_calls.wait"]
        buffer.__dlpack__(stream=2)
        assert _C.stats()["glake.driver_calls.wait"] == calls["glake.driver_calls.wait"] + 1


def test_a_block_that_was_freed_by_other_means_is_not_freed_again() -> None:
    buffer = glake.empty("3MiB")
    address = buffer.ptr
    _C.free(address)
    with pytest.raises(errors.InvalidPointer):
        buffer.free()
    other = glake.empty("3MiB")
    assert other.ptr == address
    buffer.free()
    del buffer
    assert live() == 3 * MIB
    other.free()


def test_a_free_during_an_export_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = glake.empty(MIB)
    make, refused = _C.dlpack, []

    def free() -> None:
        with pytest.raises(errors.InvalidPointer, match="held by 1 arrays"):
            buffer.free()
        refused.append(True)

    thread = threading.Thread(target=free)

    def slowly(*given: object) -> object:
        thread.start()
        thread.join(0.2)  # it must wait for the export
        return make(*given)

    monkeypatch.setattr(_C, "dlpack", slowly)
    made = buffer.__dlpack__()
    thread.join()
    assert refused and live() == MIB
    del made
    buffer.free()


def test_two_threads_free_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = glake.empty(MIB)

    def other_thread_frees() -> None:
        monkeypatch.undo()
        thread = threading.Thread(target=buffer.free)
        thread.start()
        thread.join()

    monkeypatch.setattr(buffers, "_free_unused", other_thread_frees)
    buffer.free()
    assert live() == 0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_block_has_one_owner(duplicate: Callable[[object], object]) -> None:
    with glake.empty(MIB) as buffer:
        with pytest.raises(errors.WrongType, match=r"owns its block: transfer.copy\(\)"):
            duplicate(buffer)
        assert live() == MIB


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"nbytes": 0}, errors.InvalidArgument),
        ({"nbytes": -5}, errors.InvalidArgument),
        ({"nbytes": 1.5}, errors.WrongType),
        ({"nbytes": "5 MB"}, errors.InvalidArgument),
        ({"nbytes": 65 * MIB}, errors.OutOfMemory),
        ({"nbytes": 1, "device": 99}, errors.InvalidDevice),
        ({"nbytes": 1, "device": "cpu"}, errors.InvalidDevice),
        ({"nbytes": 1, "stream": "x"}, errors.InvalidArgument),
        ({"nbytes": 1, "contiguous": "yes"}, errors.InvalidArgument),
        ({"nbytes": 1, "contiguous": 1}, errors.InvalidArgument),
    ],
)
def test_what_cannot_be(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        glake.empty(**arguments)


@pytest.mark.parametrize("pool", [None, "region"])
@pytest.mark.parametrize("policy", ["balanced", "compact"])
def test_larger_than_the_device(policy: str, pool: str | None) -> None:
    """Other streams' work must not be looked for behind the end of the device's addresses."""
    _C.configure("policy", policy)
    inside = contextlib.nullcontext() if pool is None else glake.region(pool)
    with inside, glake.empty(1000, stream=2):
        for before in (3, 30):  # lies free where the arena would grow
            glake.empty(before * MIB).free()
            for size in (n << bit for bit in range(26, 45) for n in (2, 3)):
                for odd in (0, 512, MIB):
                    with pytest.raises(errors.OutOfMemory, match="CUDA out of memory"):
                        glake.empty(size + odd)
            glake.empty(before * MIB).free()
    _C.empty_cache()


def test_idle_memory_goes_back() -> None:
    glake.empty("20MiB").free()
    held = glake.stats()["reserved_bytes.all.current"]
    assert held >= 20 * MIB
    assert _C.trim(0, 5 * MIB) == 6 * MIB  # whole granules
    assert glake.stats()["reserved_bytes.all.current"] == held - 6 * MIB
    glake.empty_cache("cuda:0")
    assert _C.trim(0, 5 * MIB) == 0
    assert glake.stats()["reserved_bytes.all.current"] == 0
    with pytest.raises(errors.InvalidDevice):
        glake.empty_cache(99)
    array = glake.transfer.pinned(5 * MIB)
    del array
    gc.collect()
    assert glake.stats()["glake.host.reserved_bytes.current"] >= 5 * MIB
    glake.empty_host_cache()
    assert glake.stats()["glake.host.reserved_bytes.current"] == 0


@pytest.mark.parametrize(
    "arguments",
    [{"stream": 0}, {"stream": -2}, {"stream": "s"}, {"copy": True}, {"dl_device": (1, 0)}],
)
def test_capsules_that_cannot_be(arguments: dict[str, object]) -> None:
    with glake.empty(1) as buffer:
        with pytest.raises(errors.GlakeError):
            buffer.__dlpack__(**arguments)
        buffer.free()  # allowed, because nothing holds it
