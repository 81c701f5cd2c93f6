"""glake.transfer on one GPU: right bytes at every alignment, order of a stream, many blocks."""

from __future__ import annotations

import torch
from checks import DEVICE, MIB, Skip, main, sleep

import glake.transfer as t

OFFSETS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 255, 4095)
SIZES = (1, 3, 16, 255, 4096, 65537, MIB + 1, 9 * MIB + 13)


def pattern(size: int, seed: int) -> torch.Tensor:
    """Bytes that differ from those of another seed, and from their neighbours."""
    return ((torch.arange(size) * (2 * seed + 3)) % 251).to(torch.uint8)


def there_and_back(pin: bool) -> None:
    """Copies each size at each offset of each end. Nothing beside it may be written."""
    room = max(SIZES) + max(OFFSETS) + 64
    device = torch.empty(room, dtype=torch.uint8, device=DEVICE)
    host = torch.empty(room, dtype=torch.uint8, pin_memory=pin)
    back = torch.empty(room, dtype=torch.uint8, pin_memory=pin)
    for number, size in enumerate(SIZES):
        for turn, offset in enumerate(OFFSETS):
            other = OFFSETS[-1 - turn]
            device.fill_(254)
            host.fill_(253)
            back.fill_(252)
            host[offset : offset + size] = pattern(size, number)
            t.copy(device[other : other + size], host[offset : offset + size]).wait()
            t.copy(back[offset : offset + size], device[other : other + size]).wait()
            torch.cuda.synchronize()
            where = f"{size} bytes from {offset} to {other}"
            assert torch.equal(back[offset : offset + size], pattern(size, number)), where
            for memory, begin, value in ((device, other, 254), (back, offset, 252)):
                beside = (memory[:begin] == value).all() and (memory[begin + size :] == value).all()
                assert bool(beside), where


def check_pinned_memory_at_all_alignments() -> None:
    there_and_back(pin=True)


def check_pageable_memory_at_all_alignments() -> None:
    there_and_back(pin=False)


def check_within_the_gpu_at_all_alignments() -> None:
    source = pattern(10 * MIB, 5).to(DEVICE)
    target = torch.empty(11 * MIB, dtype=torch.uint8, device=DEVICE)
    for size in SIZES:
        for turn, offset in enumerate(OFFSETS):
            other = OFFSETS[-1 - turn]
            target.fill_(254)
            t.copy(target[other : other + size], source[offset : offset + size]).wait()
            assert torch.equal(target[other : other + size], source[offset : offset + size])
            assert bool((target[other + size :] == 254).all())


def check_the_order_of_the_current_stream() -> None:
    for size in (4096, 24 * MIB):
        value = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        for turn in range(1, 6):
            sleep(5)
            value.fill_(turn)
            handle = t.copy(host, value)  # copies what the kernel before it wrote
            value.fill_(200)  # must wait until the copy has read
            handle.wait()
            assert bool((host == turn).all()), f"{size} bytes, turn {turn}"


def check_strided_tensors() -> None:
    source = torch.arange(512 * 640, dtype=torch.float32).view(512, 640)
    target = torch.zeros(512, 640, device=DEVICE)
    t.copy(target[::2, 64:576], source[::2, 64:576]).wait()
    t.copy(target.t()[:64], source.t()[:64]).wait()
    expected = torch.zeros(512, 640)
    expected[::2, 64:576] = source[::2, 64:576]
    expected.t()[:64] = source.t()[:64]
    assert torch.equal(target.cpu(), expected)


def check_blocks() -> None:
    cache = torch.arange(4096 * 2048, dtype=torch.int32).view(4096, 2048).pin_memory()
    index = torch.randperm(4096)[:1500]
    gathered = torch.empty(1500, 2048, dtype=torch.int32, device=DEVICE)
    t.gather(gathered, cache, index.tolist()).wait()
    assert torch.equal(gathered.cpu(), cache[index])
    back = torch.zeros_like(cache).pin_memory()
    t.scatter(back, gathered, index.tolist()).wait()
    assert torch.equal(back[index], cache[index])


def check_checksums() -> None:
    source = pattern(20 * MIB + 7, 9)
    target = torch.empty(20 * MIB + 7, dtype=torch.uint8, device=DEVICE)
    result = t.copy(target, source, checksum=True).result()
    assert result.parts[0]["verified"] and torch.equal(target.cpu(), source)


def check_registered_memory() -> None:
    source = pattern(64 * MIB, 4)
    with t.register_host(source):
        there = t.to(source, DEVICE)
    assert torch.equal(there.cpu(), source)


def check_a_captured_stream_gets_one_plain_copy() -> None:
    if not hasattr(torch.cuda, "CUDAGraph"):
        raise Skip("this torch has no graphs")
    host = torch.full((24 * MIB,), 3, dtype=torch.uint8, pin_memory=True)
    target = torch.zeros(24 * MIB, dtype=torch.uint8, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        t.copy(target, host)
    host.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((target == 7).all())


if __name__ == "__main__":
    main(globals())
