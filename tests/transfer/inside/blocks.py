"""Scatter and gather of blocks."""

import numpy as np
import pytest
from memory import Device, numbers

from glake import errors
from glake import transfer as t


@pytest.mark.parametrize("count", [1, 33, 700])
def test_gather_and_scatter_by_index(count: int) -> None:
    cache = numbers(800 * 2048).reshape(800, 2, 1024)
    pool = Device(cache.shape).set(cache)
    index = np.random.default_rng(1).permutation(800)[:count]
    picked = np.zeros((count, 2, 1024), np.uint8)
    handle = t.gather(picked, pool, index).wait()
    assert handle.bytes == picked.nbytes and (picked == cache[index]).all()
    put = numbers(count * 2048, 2).reshape(count, 2, 1024)
    t.scatter(pool, put, index.tolist()).wait()
    cache[index] = put
    assert (pool.get() == cache).all()


def test_blocks_with_a_stride() -> None:
    memory = numbers(64 * 512)
    pool = Device(memory.shape).set(memory)
    blocks = t.Blocks(pool.address + 128, 512, 60, 256, 0)
    rows = memory[128 : 128 + 60 * 512].reshape(60, 512)[:, :256]
    picked = np.zeros((60, 256), np.uint8)
    t.gather(picked, blocks).wait()
    assert (picked == rows).all()
    t.gather(picked[:2], blocks, [59, 3]).wait()
    assert (picked[:2] == rows[[59, 3]]).all()
    t.scatter(blocks, np.zeros(256, np.uint8), [7]).wait()
    after = pool.get()
    assert not after[128 + 7 * 512 :][:256].any() and (after[:128] == memory[:128]).all()


def launches() -> int:
    return int(t.stats()["kernel_launches"])


@pytest.mark.parametrize(("size", "pinned"), [(16384, True), (4099, True), (16384, False)])
def test_many_blocks_go_by_kernels(size: int, pinned: bool) -> None:
    # Odd strides and offsets make every block aligned unlike its neighbour and unlike its copy.
    count, stride = 1200, size + 37
    memory = numbers(count * stride)
    pool, index = Device(memory.shape).set(memory), np.random.default_rng(3).permutation(count)
    blocks = t.Blocks(pool.address + 5, stride, count - 1, size, 0)
    rows = np.lib.stride_tricks.as_strided(memory[5:], (count - 1, size), (stride, 1))
    index = index[index < count - 1]
    shape = (len(index), size)
    picked = t.pinned(shape, np.uint8) if pinned else np.zeros(shape, np.uint8)
    before = launches()
    result = t.gather(picked, blocks, index).result()
    assert (picked == rows[index]).all() and launches() > before
    assert result.rate > 20  # GB/s; a batch of such blocks has 1.6 to 6
    put = t.pinned(shape, np.uint8) if pinned else np.zeros(shape, np.uint8)
    put[:] = numbers(put.size, 2).reshape(shape)
    t.scatter(blocks, put, index).wait()
    for at, block in zip(index.tolist(), put, strict=True):
        memory[5 + at * stride : 5 + at * stride + size] = block
    assert (pool.get() == memory).all()
    assert t.stats()["without_kernels"] == ""


def test_between_gpus_and_nothing() -> None:
    memory = numbers(40 * 4096).reshape(40, 4096)
    here, there = Device(memory.shape).set(memory), Device((5, 4096), gpu=2)
    t.gather(there, here, [4, 4, 1, 0, 39]).wait()
    assert (there.get() == memory[[4, 4, 1, 0, 39]]).all()
    assert t.gather(np.zeros((0, 4096), np.uint8), here, []).wait().bytes == 0


def test_typed_errors() -> None:
    pool, flat = Device((8, 64)), np.zeros((2, 64), np.uint8)
    for match, index, block in [
        ("block 8 of", [8, 0], flat),
        ("block -1 of", [0, -1], flat),
        ("whole numbers", [0.5, 1.0], flat),
        ("whole numbers", [[0, 1]], flat),
        ("2 blocks of 64 bytes are 128", [0, 1], flat[:1]),
        ("not C-contiguous", [0, 1], np.zeros((2, 128), np.uint8)[:, ::2]),
    ]:
        with pytest.raises(errors.InvalidArgument, match=match):
            t.gather(block, pool, index)
        with pytest.raises(errors.InvalidArgument, match=match):
            t.scatter(pool, block, index)
    for index in (np.array([1 << 63], np.uint64), np.array([(1 << 64) - 1], np.uint64)):
        with pytest.raises(errors.InvalidArgument, match=f"block {index[0]} of"):
            t.gather(flat[:1], pool, index)
    missing = t.Blocks(pool.address, 64, 10**6, 64, 0)  # only 8 blocks are there
    t.gather(flat, missing, [0, 7]).wait()
    with pytest.raises(errors.InvalidPointer):
        t.gather(flat, missing, [7, 999_999])
    with pytest.raises(errors.InvalidPointer):
        t.scatter(missing, flat, [7, 8])
    host = np.zeros((100, 64), np.uint8)  # pageable: the middle blocks are not asked about
    rows = t.Blocks(host.ctypes.data, 64, 1 << 40, 64, -1)
    index = np.arange(100)
    t.gather(Device((100, 64)), rows, index).wait()
    index[50] = 1 << 33
    with pytest.raises(errors.InvalidPointer, match="no memory"):
        t.gather(Device((100, 64)), rows, index)
    with pytest.raises(errors.InvalidArgument, match="names a block twice"):
        t.scatter(pool, flat, [3, 3])
    with pytest.raises(errors.InvalidArgument, match="first dimension"):
        t.gather(flat, Device(()), None)
    with pytest.raises(errors.InvalidArgument, match="every 8 bytes"):
        t.gather(flat, t.Blocks(pool.address, 8, 2, 64, 0))
    pool.read_only = True
    with pytest.raises(errors.InvalidArgument, match="read-only"):
        t.scatter(pool, flat, [0, 1])
