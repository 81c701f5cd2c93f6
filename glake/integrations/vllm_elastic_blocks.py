"""The elastic KV cache of vLLM, the scheduler's part: which free blocks have memory.

A *block group* is a run of neighbouring blocks whose memory comes and goes together. This module
imports no vLLM: blocks are any objects with `block_id`.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from glake.errors import OutOfMemory

RETRY_SECONDS = 0.02


class GroupMemory(Protocol):
    """Who gives memory to block groups: vLLM's workers, or a stand-in."""

    def back(self, groups: list[int]) -> bool:
        """Gives all of the groups memory, or none of them; whether there was room."""

    def unback(self, groups: list[int]) -> None:
        """Takes the groups' memory."""


class _Group:
    """A group that has memory.

    Attributes:
        used: blocks that requests have, and the null block.
        plain: free blocks that nobody can find again.
        cached: free blocks of the prefix cache, the first freed first.
        freed_in: the step in which its last used block was freed.
    """

    __slots__ = ("cached", "freed_in", "plain", "used")

    def __init__(self, blocks: Iterable[Any]) -> None:
        self.used = 0
        self.plain: dict[int, Any] = {each.block_id: each for each in blocks}
        self.cached: dict[int, Any] = {}
        self.freed_in = 0

    def free(self) -> int:
        return len(self.plain) + len(self.cached)

    def take(self, most: int) -> list[Any]:
        """Up to `most` free blocks, those that nobody can find again first."""
        taken: list[Any] = []
        for blocks in (self.plain, self.cached):
            for number in list(blocks)[: most - len(taken)]:
                taken.append(blocks.pop(number))
        self.used += len(taken)
        return taken


class ElasticQueue:
    """Stands in for vLLM's FreeKVCacheBlockQueue: the free blocks, of which some have no memory.

    Blocks of groups that are used already go first, from the lowest group on, so that the highest
    groups become wholly free. A wholly free group keeps its memory and its cached blocks if no more
    than `keep` groups are wholly free; beyond that the one that has been free the longest is given
    back.

    Attributes:
        num_free_blocks: free blocks, with memory or not.
        ready: free blocks with memory.
        returned: groups given back so far.
        refusals: how often there was no memory for a group.
    """

    def __init__(
        self,
        blocks: Sequence[Any],
        size: int,
        keep: int,
        memory: GroupMemory,
        evict: Callable[[Any], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With memory for the first group, whose first block is the null block.

        Args:
            blocks: all blocks, by number. All but the first one are free.
            size: blocks in a group.
            keep: wholly free groups that stay backed.
            memory: where memory comes from.
            evict: takes a block out of the prefix cache.
            clock: seconds.

        Raises:
            OutOfMemory: there is no memory for the first group.
        """
        self._blocks, self._size, self._keep = blocks, size, keep
        self._memory, self._evict, self._clock = memory, evict, clock
        self._groups: dict[int, _Group] = {}
        self._absent = list(range(-(-len(blocks) // size)))  # a heap: without memory
        self._partial: list[int] = []  # a heap: used, with free blocks; and some that were
        self._listed: set[int] = set()  # what is in the heap
        self._whole: dict[int, None] = {}  # wholly free, the one that was freed first is the first
        self._fresh: dict[int, None] = {}  # backed for a request, and not used yet
        self._begun = self._ended = 0
        self._refused, self._retry_at = 0, 0.0
        self.num_free_blocks = len(blocks) - 1
        self.ready = self.returned = self.refusals = 0
        if not self._grow([heapq.heappop(self._absent)]):
            raise OutOfMemory(
                f"the elastic KV cache has no memory for its first {size} blocks: free some of the "
                "GPU's memory, or lower gpu_memory_utilization of its other engines"
            )
        first = self._groups[0]
        del first.plain[blocks[0].block_id]
        first.used = 1
        self.ready -= 1
        self._list(0)

    @property
    def backed_groups(self) -> int:
        """Groups that have memory."""
        return len(self._groups)

    def prepare(self, n: int) -> bool:
        """Sees to it that `n` free blocks have memory; whether they have.

        A refusal stands for RETRY_SECONDS: asking the driver again at each step would slow down
        the steps of requests that have their memory.
        """
        if n <= self.ready:
            return True
        if n > self.num_free_blocks:
            return False
        groups: list[int] = []
        lacking = n - self.ready
        while lacking > 0:
            groups.append(heapq.heappop(self._absent))
            lacking -= self._length(groups[-1])
        waits = len(groups) >= self._refused and self._clock() < self._retry_at
        if not waits and self._grow(groups):
            self._fresh.update(dict.fromkeys(groups))
            return True
        for each in groups:
            heapq.heappush(self._absent, each)
        if not waits:
            self.refusals += 1
            self._refused, self._retry_at = len(groups), self._clock() + RETRY_SECONDS
        return False

    def begin_step(self) -> None:
        """Says that a step is being scheduled."""
        self.give_back()
        self._begun += 1

    def end_step(self) -> None:
        """Says that a step's output is there. Steps end in the order in which they began."""
        self._ended += 1
        self.give_back()

    def give_back(self) -> None:
        """Gives back wholly free groups beyond those that are kept.

        A step that was scheduled before a block was freed may still write it: one that runs ahead,
        for a request that has ended meanwhile. Its parts (the model, then the draft model) may be
        sent to the workers after this call. So a group is given back only when the output of every
        step that had begun by then is there.
        """
        groups: list[int] = []
        for index in self._whole:
            if len(self._whole) - len(groups) <= self._keep:
                break
            if self._groups[index].freed_in > self._ended:
                break  # those behind it were freed later
            groups.append(index)
        if not groups:
            return
        for index in groups:
            del self._whole[index]
            group = self._groups.pop(index)
            self.ready -= group.free()
            for block in group.cached.values():
                self._evict(block)
            heapq.heappush(self._absent, index)
        self.returned += len(groups)
        self._refused, self._retry_at = 0, 0.0
        self._memory.unback(sorted(groups))

    def popleft_n(self, n: int) -> list[Any]:
        """Takes `n` free blocks.

        Raises:
            OutOfMemory: there is no memory for them.
        """
        if not self.prepare(n):
            raise OutOfMemory(
                f"{n} KV blocks: {self.num_free_blocks} are free, {self.ready} of them with memory"
            )
        taken: list[Any] = []
        while len(taken) < n:
            index = self._next()
            group = self._groups[index]
            taken += group.take(n - len(taken))
            self._settle(index, group)
        self.ready -= n
        self.num_free_blocks -= n
        return taken

    def popleft(self) -> Any:
        """Takes one free block."""
        return self.popleft_n(1)[0]

    def remove(self, block: Any) -> None:
        """Takes a free block that the prefix cache found."""
        index = block.block_id // self._size
        group = self._groups[index]
        if group.cached.pop(block.block_id, None) is None:
            del group.plain[block.block_id]
        group.used += 1
        self.ready -= 1
        self.num_free_blocks -= 1
        self._settle(index, group)

    def prepend_n(self, blocks: list[Any]) -> None:
        """Takes back blocks that nobody can find again."""
        for each in blocks:
            self._put(each, self._groups[each.block_id // self._size].plain)

    def append_n(self, blocks: list[Any]) -> None:
        """Takes back blocks of the prefix cache."""
        for each in blocks:
            self._put(each, self._groups[each.block_id // self._size].cached)

    def append(self, block: Any) -> None:
        """Takes back a block of the prefix cache."""
        self.append_n([block])

    def get_all_free_blocks(self) -> list[Any]:
        """All free blocks, those without memory last."""
        free = [
            each
            for _, group in sorted(self._groups.items())
            for each in (*group.plain.values(), *group.cached.values())
        ]
        return free + [each for index in sorted(self._absent) for each in self._of(index)]

    def _of(self, index: int) -> Sequence[Any]:
        return self._blocks[index * self._size : (index + 1) * self._size]

    def _length(self, index: int) -> int:
        return min(self._size, len(self._blocks) - index * self._size)

    def _grow(self, indices: list[int]) -> bool:
        if not self._memory.back(sorted(indices)):
            return False
        for each in indices:
            self._groups[each] = group = _Group(self._of(each))
            self.ready += group.free()
        return True

    def _next(self) -> int:
        """The group from which the next block comes."""
        while self._partial:
            group = self._groups.get(self._partial[0])
            if group is not None and group.used and group.free():
                return self._partial[0]
            self._listed.discard(heapq.heappop(self._partial))
        # Groups that were backed for this hold nothing that could be found again.
        return next(iter(self._fresh or self._whole))

    def _put(self, block: Any, blocks: dict[int, Any]) -> None:
        index = block.block_id // self._size
        group = self._groups[index]
        blocks[block.block_id] = block
        group.used -= 1
        self.ready += 1
        self.num_free_blocks += 1
        if group.used:
            self._list(index)
            return
        group.freed_in = self._begun
        # A request has ended, perhaps the one for which these were backed. They go back first.
        if self._fresh:
            self._whole, self._fresh = self._fresh | self._whole, {}
        self._whole[index] = None

    def _settle(self, index: int, group: _Group) -> None:
        """Puts a group where it belongs after some of its blocks were taken."""
        self._whole.pop(index, None)
        self._fresh.pop(index, None)
        if group.free():
            self._list(index)

    def _list(self, index: int) -> None:
        if index not in self._listed:
            self._listed.add(index)
            heapq.heappush(self._partial, index)
