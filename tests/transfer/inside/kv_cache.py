"""Sequences of a KVCache that go to host memory and come back, on a machine of eight GPUs."""

import pytest
import torch

import glake
from glake import errors, simcuda

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
