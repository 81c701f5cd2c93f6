"""The elastic KV cache's free blocks, with plain objects for vLLM's: vllm_elastic_blocks.py SEED.

A random scheduler takes, frees and finds blocks again, while memory comes and goes. Prints "kept".
"""

import random
import sys
from dataclasses import dataclass

import pytest

from glake.errors import OutOfMemory
from glake.integrations.vllm_elastic_blocks import RETRY_SECONDS, ElasticQueue


@dataclass(eq=False)
class Block:
    block_id: int
    name: str | None = None  # in the prefix cache


class Memory:
    """Room for some groups, which other engines take and leave."""

    def __init__(self, room: int) -> None:
        self.room, self.backed, self.calls = room, set[int](), 0

    def back(self, groups: list[int]) -> bool:
        self.calls += 1
        assert not self.backed & set(groups)
        if len(self.backed) + len(groups) > self.room:
            return False
        self.backed |= set(groups)
        return True

    def unback(self, groups: list[int]) -> None:
        assert set(groups) <= self.backed
        self.backed -= set(groups)


class Pool:
    """What vLLM's BlockPool does with its queue."""

    def __init__(self, count: int, size: int, keep: int, room: int) -> None:
        self.blocks = [Block(at) for at in range(count)]
        self.cache: dict[str, Block] = {}
        self.memory, self.time = Memory(room), 0.0
        self.queue = ElasticQueue(
            self.blocks, size, keep, self.memory, self.evict, lambda: self.time
        )
        self.size = size

    def evict(self, block: Block) -> None:
        if block.name is not None:
            del self.cache[block.name]
            block.name = None

    def take(self, count: int) -> list[Block]:
        taken = self.queue.popleft_n(count)
        for each in taken:
            assert each.block_id // self.size in self.memory.backed
            self.evict(each)
        return taken

    def free(self, blocks: list[Block]) -> None:
        self.queue.prepend_n([each for each in blocks if each.name is None])
        self.queue.append_n([each for each in blocks if each.name is not None])

    def step(self) -> None:
        self.queue.begin_step()
        self.queue.end_step()


def checked(pool: Pool, used: set[int]) -> None:
    """The books are those of the blocks."""
    queue = pool.queue
    free = queue.get_all_free_blocks()
    assert len(free) == queue.num_free_blocks == len({each.block_id for each in free})
    assert {each.block_id for each in free} | used | {0} == set(range(len(pool.blocks)))
    assert not {each.block_id for each in free} & (used | {0})
    backed = pool.memory.backed
    assert queue.ready == sum(each.block_id // pool.size in backed for each in free)
    assert {at // pool.size for at in used | {0}} <= backed
    assert all(each.block_id // pool.size in backed for each in pool.cache.values())
    assert queue.backed_groups == len(backed)


def at_random(seed: int) -> tuple[int, int, int]:
    """How often a block was found again, memory was refused, and a group was given back."""
    rng = random.Random(seed)
    size = rng.choice([1, 3, 8])
    pool = Pool(rng.randrange(12 * size, 20 * size), size, rng.randrange(4), rng.randrange(4, 12))
    requests: list[list[Block]] = []
    names = hits = refusals = 0
    for _ in range(1500):
        pool.time += rng.choice([0, RETRY_SECONDS / 2, RETRY_SECONDS * 2])
        pool.memory.room = max(1, pool.memory.room + rng.choice([-1, 0, 1]))
        pool.queue.begin_step()
        if rng.random() < 0.6:
            found = [rng.choice(list(pool.cache.values()))] if pool.cache else []
            found = [each for each in found if not any(each in blocks for blocks in requests)]
            count = rng.randrange(3 * size)
            if pool.queue.prepare(count + len(found)):
                for each in found:
                    pool.queue.remove(each)
                    hits += 1
                requests.append(found + pool.take(count))
            else:
                refusals += 1
        if requests and rng.random() < 0.55:
            blocks = requests.pop(rng.randrange(len(requests)))
            for each in blocks:
                if each.name is None and rng.random() < 0.7:
                    names += 1
                    each.name = f"{names}"
                    pool.cache[each.name] = each
            pool.free(blocks)
        pool.queue.end_step()
        checked(pool, {each.block_id for blocks in requests for each in blocks})
    for blocks in requests:
        pool.free(blocks)
    pool.step()
    assert pool.queue.backed_groups <= pool.queue._keep + 1 + len(pool.queue._fresh)
    return hits, refusals, pool.queue.returned


def packs_and_gives_back() -> None:
    pool = Pool(64, 8, 1, 8)
    assert pool.queue.num_free_blocks == 63 and pool.queue.ready == 7
    first = pool.take(20)  # 1 to 20: groups 0, 1 and 2
    second = pool.take(20)
    assert [each.block_id for each in first + second] == list(range(1, 41))
    pool.free(second[:10])  # 21 to 30
    assert [each.block_id for each in pool.take(3)] == [21, 22, 23]
    assert pool.memory.backed == {0, 1, 2, 3, 4, 5}
    pool.free(second[10:])  # 31 to 40, so groups 3, 4 and 5 are free: two beyond the one kept
    pool.step()
    assert pool.memory.backed == {0, 1, 2, 5} and pool.queue.returned == 2
    pool.free(first)
    pool.step()
    assert pool.queue.ready == pool.size * 3 - 1 - 3


def steps_in_flight_keep_memory() -> None:
    pool = Pool(64, 8, 0, 8)
    blocks = pool.take(20)
    pool.queue.begin_step()  # it writes these blocks
    pool.queue.begin_step()  # so does this one, which ran ahead
    pool.queue.end_step()
    pool.free(blocks)  # the first step's output has ended the request
    pool.queue.give_back()
    assert pool.memory.backed == {0, 1, 2}
    pool.queue.begin_step()
    assert pool.memory.backed == {0, 1, 2}
    pool.queue.end_step()
    assert pool.memory.backed == {0}
    pool.queue.end_step()


def a_refusal_takes_nothing_and_stands_for_a_while() -> None:
    pool = Pool(64, 8, 0, 3)
    assert not pool.queue.prepare(40) and pool.memory.backed == {0}
    assert pool.queue.refusals == 1 and pool.memory.calls == 2
    assert not pool.queue.prepare(40) and pool.memory.calls == 2
    assert pool.queue.prepare(20) and pool.memory.calls == 3  # this asks for less
    pool.memory.room = 8
    assert not pool.queue.prepare(63)
    pool.time += RETRY_SECONDS * 2
    assert pool.queue.prepare(63) and pool.queue.ready == 63
    assert not pool.queue.prepare(64) and pool.queue.refusals == 1
    with pytest.raises(OutOfMemory, match="64 KV blocks: 63 are free, 63 of them with memory"):
        pool.queue.popleft_n(64)
    with pytest.raises(OutOfMemory, match="first 8 blocks"):
        Pool(64, 8, 0, 0)


def cached_blocks_of_kept_groups_are_found() -> None:
    pool = Pool(64, 8, 1, 8)
    old, new = pool.take(15), pool.take(8)  # 1 to 15: groups 0 and 1; 16 to 23: group 2
    for each in old + new:
        each.name = f"{each.block_id}"
        pool.cache[each.name] = each
    pool.free(old)
    pool.free(new)
    pool.step()
    assert pool.memory.backed == {0, 2}  # group 1 was free for longer
    assert sorted(map(int, pool.cache)) == [*range(1, 8), *range(16, 24)]
    pool.queue.remove(pool.cache["17"])
    assert pool.queue.ready == 7 + 7
    assert not set(pool.cache) & {each.name for each in pool.take(14)}
    assert list(pool.cache) == ["17"]


def memory_for_a_request_goes_before_what_is_kept() -> None:
    pool = Pool(64, 8, 1, 8)
    blocks = pool.take(15)  # 1 to 15: groups 0 and 1
    for each in blocks:
        each.name = f"{each.block_id}"
        pool.cache[each.name] = each
    pool.free(blocks)
    pool.step()
    assert pool.queue.prepare(30) and pool.memory.backed == {0, 1, 2, 3}
    pool.step()  # which does not give back what the request is about to take
    taken = pool.take(10)  # of groups 0 and 2
    assert sorted(map(int, pool.cache)) == list(range(8, 16))
    pool.free(taken)  # it has ended early, and did not need group 3
    pool.step()
    assert pool.memory.backed == {0, 2} and not pool.cache


runs = [at_random(int(sys.argv[1]) * 4 + number) for number in range(4)]
assert all(map(sum, zip(*runs, strict=True))), runs
packs_and_gives_back()
steps_in_flight_keep_memory()
a_refusal_takes_nothing_and_stands_for_a_while()
cached_blocks_of_kept_groups_are_found()
memory_for_a_request_goes_before_what_is_kept()
print("kept")
