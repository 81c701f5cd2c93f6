"""The elastic KV cache's memory on the simulated GPU, without vLLM: layouts, refusals, ranks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import glake
from glake import errors
from glake.integrations import vllm_elastic
from glake.integrations.vllm_elastic_memory import (
    ATTRIBUTE,
    BlockMemory,
    Ranks,
    Segment,
    group_size,
    segments,
)

MIB = 1 << 20
PAGE = 2 * MIB


def bytes_of(view: torch.Tensor, base: int, block: int, ratio: int) -> set[int]:
    """Where each byte of a block is, the slow way."""
    part = view[block * ratio : (block + 1) * ratio]
    width = part.element_size()
    return {
        part.data_ptr()
        - base
        + sum(a * b for a, b in zip(at, part.stride(), strict=True)) * width
        + byte
        for at in itertools.product(*map(range, part.shape))
        for byte in range(width)
    }


def layouts(raw: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, int]]:
    """A layer's view in each layout that vLLM has: 2 layers, 6 blocks, 2 heads, 3 tokens of 4."""
    dims = {"L": 2, "B": 6, "H": 2, "N": 3, "C": 4}
    for order in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"):
        whole = raw[: 2 * 6 * 2 * 3 * 4].view([dims[each] for each in order])
        layers = whole.permute([order.index(each) for each in "LBHNC"])
        yield order, layers[1], 1
        if order == "LBHNC":
            yield "kernel blocks", layers[1], 2
    yield "keys, then values", raw[:240].view(2, 10, 3, 4).permute(1, 0, 2, 3), 1


def segments_are_where_blocks_lie() -> None:
    raw = torch.arange(4096, dtype=torch.int16)
    for name, view, ratio in layouts(raw):
        blocks = view.shape[0] // ratio
        found = list(segments(view, raw.data_ptr(), blocks))
        for block in range(blocks):
            expected = bytes_of(view, raw.data_ptr(), block, ratio)
            told: set[int] = set()
            for each in found:
                at = each.offset + block * each.stride
                told |= set(range(at, at + each.span))
            assert expected <= told, (name, block)
            # Where layers or heads lie between, a segment also spans some of theirs.
            assert expected == told or "B" in name[:2], (name, block)
    with pytest.raises(errors.NotOffered, match="not 4 blocks"):
        list(segments(raw[:60].view(6, 10), raw.data_ptr(), 4))
    assert group_size([Segment(0, 64 << 10, 1)]) == 32
    assert group_size([Segment(0, 3 * MIB, 1)]) == 2  # 6 MiB: three pages
    assert group_size([Segment(0, 73728, 1)]) == 29  # exact would be 256
    assert group_size([Segment(0, 64 << 10, 1), Segment(0, 8 * MIB, 1)]) == 32


class Cache:
    """A cache of layers whose blocks have `width` bytes each, after `offset` bytes."""

    def __init__(
        self, width: int, blocks: int, layers: int = 2, offset: int = 0, **asked: Any
    ) -> None:
        nbytes = offset + width * blocks * layers
        self.buffer = glake.reserve(nbytes)
        self.raw = self.buffer.tensor(torch.int8, [nbytes])
        rows = self.raw[offset:].view(layers, blocks, width)
        self.layers = list(rows)
        base = self.raw.data_ptr()
        found = [each for layer in self.layers for each in segments(layer, base, blocks)]
        self.memory = BlockMemory(
            self.buffer, found, blocks, clear=self.clear, stream=lambda: 0, **asked
        )

    def clear(self, begin: int, end: int) -> None:
        self.raw[begin:end].zero_()

    def fill(self, group: int, value: int) -> None:
        size = self.memory.size
        for layer in self.layers:
            layer[group * size : (group + 1) * size].fill_(value)

    def has(self, group: int, value: int) -> bool:
        size = self.memory.size
        return all(bool((x[group * size : (group + 1) * size] == value).all()) for x in self.layers)


def groups_that_share_pages_keep_them() -> None:
    # 96 KiB a block: 22 blocks a group fill no whole pages, and layers begin in the middle of one.
    cache = Cache(96 << 10, 70, offset=512)
    memory = cache.memory
    assert memory.size == 64 and memory.describe()[:2] == (70, 64)  # three pages, exactly
    memory.size = 22
    memory.back([0, 1])
    cache.fill(0, 1), cache.fill(1, 2)
    memory.back([3])
    cache.fill(3, 4)
    before = cache.buffer.backed
    memory.unback([1, 2])  # the second has none
    assert 0 < before - cache.buffer.backed < memory.describe()[2]
    assert cache.has(0, 1) and cache.has(3, 4)
    memory.back([1])
    assert cache.buffer.backed == before and cache.has(0, 1) and cache.has(3, 4)
    memory.close()
    assert cache.buffer.backed == 0
    assert glake.stats()["glake.integrations.vllm.elastic_backed_bytes"] == 0


def two_caches_have_more_than_the_gpu_by_turns() -> None:
    caches = [Cache(64 << 10, 4096) for _ in range(2)]  # 512 MiB each, of 256 MiB
    first, second = (each.memory for each in caches)
    first.back(range(50))
    for group in range(50):
        caches[0].fill(group, 5)
    with pytest.raises(glake.OutOfMemory):
        second.back(range(50))
    assert caches[1].buffer.backed == 0
    first.unback(range(10, 50))
    second.back(range(50))
    assert all(caches[1].has(group, 0) for group in range(50))  # not the first one's 5
    assert all(caches[0].has(group, 5) for group in range(10))
    assert glake.stats()["glake.integrations.vllm.elastic_backed_bytes_peak"] >= 240 * MIB
    calls = glake.stats()["glake.driver_calls.create"]
    second.unback(range(50))
    first.back(range(10, 50))
    assert glake.stats()["glake.driver_calls.create"] == calls  # the same memory by turns
    first.close(), second.close()


def memory_goes_back_to_the_driver_if_asked() -> None:
    glake._C.empty_cache(0)
    cache = Cache(64 << 10, 1024, to_driver=True)
    held = glake.stats()["reserved_bytes.all.current"]
    cache.memory.back(range(20))
    assert glake.stats()["reserved_bytes.all.current"] == held + 80 * MIB
    cache.memory.unback(range(15))
    assert glake.stats()["reserved_bytes.all.current"] == held + 20 * MIB
    cache.memory.close()


def headroom_is_left() -> None:
    room = {"free": 100 * MIB}
    vllm_elastic.vllm_elastic_memory._free_bytes = lambda device: room["free"]
    glake._C.empty_cache(0)
    cache = Cache(64 << 10, 1024, headroom=90 * MIB)
    cache.memory.back([0, 1])
    room["free"] = 0
    with pytest.raises(glake.OutOfMemory, match=r"wants 12582912 bytes, of \d+ .* leaves 94371840"):
        cache.memory.back([2, 3, 4])
    assert cache.buffer.backed == 8 * MIB
    # What the driver seems to have may be another process's by now.
    room["free"] = 300 * MIB
    held = glake.stats()
    assert held["reserved_bytes.all.current"] - held["allocated_bytes.all.current"] >= 90 * MIB
    with glake.empty(100 * MIB), pytest.raises(glake.OutOfMemory):
        cache.memory.back(range(2, 30))
    assert cache.buffer.backed == 8 * MIB
    cache.memory.close()


class Worker:
    """A rank that has room for some bytes."""

    def __init__(self, room: int) -> None:
        self.room, cache = room, Cache(64 << 10, 1024)
        self.cache = cache
        back = cache.buffer.back

        def refuse(begin: int, end: int, stream: Any) -> None:
            if cache.buffer.backed + end - begin > self.room:
                raise glake.OutOfMemory(f"rank has room for {self.room} bytes")
            back(begin, end, stream)

        cache.buffer.back = refuse  # type: ignore[method-assign]
        setattr(self, ATTRIBUTE, cache.memory)


def all_ranks_or_none() -> None:
    workers = [Worker(200 * MIB), Worker(18 * MIB), Worker(200 * MIB)]

    def rpc(call: Callable[..., Any], args: tuple[Any, ...] = ()) -> list[Any]:
        return [call(each, *args) for each in workers]

    ranks = Ranks(rpc)
    assert ranks.describe() == (1024, 32, 2 * PAGE)
    assert ranks.back([0, 1])
    assert not ranks.back([2, 3, 4])
    assert [each.cache.buffer.backed for each in workers] == [8 * MIB] * 3
    assert ranks.back([3, 4]) and not ranks.back([5])
    ranks.unback([1, 3])
    assert [each.cache.buffer.backed for each in workers] == [8 * MIB] * 3
    assert ranks.back([5, 6])
    told = glake.stats()
    assert told["glake.integrations.vllm.elastic_refusals"] == 2
    assert told["glake.integrations.vllm.elastic_returned_groups"] == 2
    workers[2].cache.memory.size = 16
    with pytest.raises(errors.GlakeError, match="the ranks' KV caches differ"):
        ranks.describe()
    ranks._rpc = lambda call, args=(): [call(object(), *args)]
    with pytest.raises(errors.InvalidArgument, match="no elastic KV cache"):
        ranks.back([0])


def options() -> None:
    read = vllm_elastic.read
    assert read({}) is None and read(None) is None and read({"glake": {"keep": 1}}) is None
    asked = {"elastic_kv": True, "keep": "1GiB", "headroom": 5, "give_back": "driver"}
    assert read({"glake": asked}) == vllm_elastic.Options(1 << 30, 5, True)
    assert read({"glake": {"elastic_kv": True}}) == vllm_elastic.Options()
    for wrong, error, text in (
        ([], errors.WrongType, "is a dict"),
        ({"elastic": True}, errors.InvalidArgument, "no option 'elastic'.*elastic_kv"),
        ({"elastic_kv": 1}, errors.InvalidArgument, "True or False"),
        ({"elastic_kv": True, "keep": -1}, errors.InvalidArgument, "keep"),
        ({"elastic_kv": True, "give_back": "os"}, errors.InvalidArgument, "'process' or 'driver'"),
    ):
        with pytest.raises(error, match=text):
            read({"glake": wrong})


assert os.environ["GLAKE_SIM_MEMORY"] == "256MiB"
options()
segments_are_where_blocks_lie()
groups_that_share_pages_keep_them()
two_caches_have_more_than_the_gpu_by_turns()
memory_goes_back_to_the_driver_if_asked()
all_ranks_or_none()
headroom_is_left()
print("backed")
