"""Sequences of a KVCache that go to host memory and come back, on a machine of eight GPUs."""

import ctypes

import pytest
import torch
from driver import Stream

import glake
from glake import errors, simcuda
from glake.transfer.handle import Transfer

TOKENS = 512
BYTES = TOKENS * 2 * 16 * 1024 * 4  # 64 MiB


def cache() -> glake.KVCache:
    return glake.KVCache(1, 16, 1024, torch.float32, TOKENS, layout="layers")


def write(kv: glake.KVCache, sequence: int) -> None:
    for sign, part in zip((1, -1), kv.view(sequence, 0), strict=True):
        part.copy_(sign * torch.arange(TOKENS)[:, None, None])


def holds(kv: glake.KVCache, sequence: int) -> bool:
    return all(
        bool((part == sign * torch.arange(TOKENS)[:, None, None]).all())
        for sign, part in zip((1, -1), kv.view(sequence, 0), strict=True)
    )


def test_no_host_memory_changes_nothing() -> None:
    """This is the first test, because later on the pool has memory of former copies."""
    with cache() as kv:
        one = kv.add(TOKENS)
        write(kv, one)
        glake.transfer.default_engine()
        simcuda.fail("cuMemHostAlloc", times=-1)
        try:
            with pytest.raises(errors.OutOfMemory):
                kv.offload(one)
        finally:
            simcuda.fail()
        assert kv.offloaded == 0 and holds(kv, one)


def test_it_goes_over_every_path() -> None:
    with cache() as kv:
        one = kv.add(TOKENS)
        write(kv, one)
        for handle in (kv.offload(one), kv.load(one)):
            result = handle.result()
            assert result.bytes == BYTES and len(result.paths) > 1
        assert holds(kv, one)


def test_a_copy_that_fails_loses_nothing_where_it_is_waited_for() -> None:
    with cache() as kv:
        one = kv.add(TOKENS)
        write(kv, one)
        backed = kv.backed
        simcuda.fail_copy("cuda:0", "*", times=-1)
        with pytest.raises(errors.CopyFailed):
            kv.offload(one)
        simcuda.fail_copy()
        assert kv.offloaded == 0 and kv.backed == backed and holds(kv, one)
        kv.offload(one)
        simcuda.fail_copy("*", "cuda:0", times=-1)
        with pytest.raises(errors.CopyFailed):
            kv.load(one)
        simcuda.fail_copy()
        assert kv.offloaded == BYTES and kv.backed == 0
        kv.load(one)
        assert holds(kv, one)


def fill(kv: glake.KVCache, sequence: int) -> None:
    for part in kv.view(sequence, 0):
        part.fill_(7)


def slow_read(kv: glake.KVCache, sequence: int) -> Transfer:
    """A copy of the sequence's keys, in no stream's order, that begins late."""
    simcuda.stall_copy("cuda:0", "*", 1, 2_000_000_000)
    keys = kv.view(sequence, 0)[0].reshape(-1)
    return glake.transfer.copy(torch.empty_like(keys), keys)


def test_pages_that_a_copy_kept_are_not_grown_into() -> None:
    """A fork has the same pages, and they hold its tokens."""
    with glake.KVCache(1, 16, 1024, torch.float32, TOKENS, 2, layout="layers") as kv:
        one = kv.add(TOKENS)
        write(kv, one)
        two = kv.fork(one)
        backed = kv.backed
        handle = slow_read(kv, one)
        with pytest.raises(errors.InvalidPointer, match="is being copied"):
            kv.cut(one, 0)
        assert kv.length(one) == 0
        handle.wait()
        kv.grow(one, TOKENS)
        assert kv.backed == backed and kv.shared == 0
        fill(kv, one)
        assert holds(kv, two)


def test_a_place_is_not_begun_in_pages_that_a_copy_kept() -> None:
    with glake.KVCache(1, 16, 1024, torch.float32, TOKENS, 2, layout="layers") as kv:
        one = kv.add(TOKENS)
        write(kv, one)
        two = kv.fork(one)
        handle = slow_read(kv, one)
        with pytest.raises(errors.InvalidPointer, match="is being copied"):
            kv.remove(one)
        with pytest.raises(errors.InvalidPointer, match="is being copied"):
            kv.add(TOKENS)
        assert len(kv) == 1
        handle.wait()
        assert kv.add(TOKENS) == one and kv.shared == 0
        fill(kv, one)
        assert holds(kv, two)


def test_a_load_that_is_interrupted_gives_no_pages_up_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cache() as kv:
        one = kv.add(TOKENS)
        write(kv, one)
        kv.offload(one)
        waits: list[Transfer] = []
        wait, unback = Transfer.wait, kv.buffer.unback

        def interrupted(handle: Transfer, timeout: float | None = None) -> Transfer:
            if handle is kv._places[one].offloaded.transfer:  # type: ignore[union-attr]
                return wait(handle, timeout)
            waits.append(handle)
            if len(waits) == 1:
                raise KeyboardInterrupt
            return wait(handle, timeout)

        def checked(begin: int, end: int) -> None:
            assert waits[0]._over
            unback(begin, end)

        monkeypatch.setattr(Transfer, "wait", interrupted)
        monkeypatch.setattr(kv.buffer, "unback", checked)
        with pytest.raises(KeyboardInterrupt):
            kv.load(one)
        monkeypatch.undo()
        assert kv.backed == 0 and kv.offloaded == BYTES
        kv.load(one)
        assert holds(kv, one)


def bytes_of(block: glake.Buffer) -> torch.Tensor:
    memory = (ctypes.c_ubyte * block.nbytes).from_address(block.ptr)
    return torch.frombuffer(memory, dtype=torch.uint8)


@pytest.mark.parametrize("touch", ["grow", "cut", "fork", "offload", "load"])
def test_a_load_that_fails_later_leaves_the_tokens_in_host_memory(
    monkeypatch: pytest.MonkeyPatch, touch: str
) -> None:
    """As with PyTorch's CUDA build, where nobody waits for the copies."""
    monkeypatch.setattr(glake.KVCache, "_waited", staticmethod(lambda _: None))
    with glake.KVCache(1, 16, 1024, torch.float32, TOKENS, 2, layout="layers") as kv:
        one = kv.add(TOKENS)
        write(kv, one)
        kv.offload(one).wait()
        simcuda.fail_copy("*", "cuda:0", times=-1)
        handle = kv.load(one)
        if touch in ("grow", "load"):  # these wait for nothing
            with pytest.raises(errors.CopyFailed):
                handle.wait()
        if touch == "offload":
            assert kv.offload(one).done()
        elif touch != "load":
            with pytest.raises(errors.InvalidArgument, match=r"offloaded: load\(\) it first"):
                kv.fork(one) if touch == "fork" else getattr(kv, touch)(one, 1)
        simcuda.fail_copy()
        kv.load(one).wait()
        assert kv.offloaded == 0 and kv.length(one) == TOKENS and holds(kv, one)
        assert kv._places[one].arriving is None


def test_each_refused_call_leaves_the_sequence_on_one_side() -> None:
    """What gets the pages after a refusal keeps its bytes, and the sequence its own."""
    with cache() as kv:
        one = kv.add(TOKENS)
        write(kv, one)
        for way, way_back in ((kv.offload, kv.load), (kv.load, kv.offload)):
            refused = 0
            for k in range(1, 61):
                simcuda.fail("*", k)
                try:
                    way(one)
                except errors.GlakeError:
                    refused += 1
                finally:
                    simcuda.fail()
                if kv.offloaded:
                    assert kv.backed == 0
                    with glake.empty(BYTES) as other:
                        assert bool((bytes_of(other).fill_(3) == 3).all())
                else:
                    assert holds(kv, one)
                if bool(kv.offloaded) == (way == kv.offload):
                    way_back(one)
            assert refused > 5
            way(one)
        assert holds(kv, one)


def test_a_fork_within_a_page_is_refused_while_a_stream_is_captured() -> None:
    """The copy of the page would be a part of the graph, and no copy at all by now."""
    stream = Stream(0)
    kv = glake.KVCache(1, 1, 64, torch.float32, 1 << 16, 3, value_dim=0, stream=stream.handle)
    with kv:
        one = kv.add(9000)
        kv.keys(0)[one, :9000] = 5.0
        stream.begin_capture()
        try:
            with pytest.raises(errors.InvalidArgument, match="cannot be forked"):
                kv.fork(one)
        finally:
            stream.end_capture()
        kv.grow(one, 9001)  # names the stream
        assert len(kv) == 1 and kv.shared == 0
        two = kv.fork(one)
        assert bool((kv.view(two, 0)[0][:9000] == 5).all())


def test_a_cache_that_was_freed_begins_no_sequence() -> None:
    kv = cache()
    kv.free()
    with pytest.raises(errors.InvalidPointer, match="has been freed"):
        kv.add()
