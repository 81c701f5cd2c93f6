"""The elastic KV cache of vLLM, the workers' part: the memory behind block groups.

The functions at the end run in vLLM's workers, where vLLM's executor calls them. This module
imports no vLLM.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from glake import _C
from glake.allocator.buffer import stream_handle
from glake.allocator.virtual import PAGE
from glake.errors import GlakeError, InvalidArgument, NotOffered, OutOfMemory
from glake.integrations import figures

# The last segment of a row of pages may lie in a page of its neighbours, which then has memory for
# both. A group of more blocks avoids that, but it must not be this much larger.
_MOST_BLOCKS_MORE = 4


@dataclass(frozen=True)
class Segment:
    """Where a layer's bytes of each block lie: block b has `span` bytes at offset + b * stride."""

    offset: int
    stride: int
    span: int


def segments(view: Any, base: int, blocks: int) -> Iterator[Segment]:
    """Where a layer's view of the cache has each block, from its address, shape and strides.

    vLLM's views have blocks as their first dimension, or `ratio` kernel blocks for each. A
    dimension that lies outside the blocks, such as heads, makes a segment for each of its indices.

    Args:
        view: a tensor.
        base: the cache's first address.
        blocks: their number.

    Raises:
        NotOffered: blocks are not the view's first dimension.
    """
    shape, width = tuple(view.shape), view.element_size()
    strides = [each * width for each in view.stride()]
    if not shape or shape[0] % blocks or min(strides) < 0 or strides[0] == 0:
        raise NotOffered(
            f"a KV cache of shape {shape} and strides {strides} bytes is in no layout that the "
            f"elastic KV cache knows: its first dimension is not {blocks} blocks"
        )
    ratio = shape[0] // blocks
    outer = [d for d in range(1, len(shape)) if strides[d] > strides[0] and shape[d] > 1]
    inner = [d for d in range(1, len(shape)) if d not in outer]
    span = (ratio - 1) * strides[0] + width + sum((shape[d] - 1) * strides[d] for d in inner)
    for indices in itertools.product(*(range(shape[d]) for d in outer)):
        at = sum(index * strides[d] for index, d in zip(indices, outer, strict=True))
        yield Segment(view.data_ptr() - base + at, ratio * strides[0], span)


def group_size(found: Iterable[Segment]) -> int:
    """Blocks in a group: as few as fill a page in each segment, or fill pages exactly."""
    return max(map(_fill, {each.stride for each in found}))


def _fill(stride: int) -> int:
    least = -(-PAGE // stride)
    exact = PAGE // math.gcd(PAGE, stride)
    return exact if exact <= _MOST_BLOCKS_MORE * least else least


class BlockMemory:
    """The memory of a KV cache, by block groups.

    A page may have bytes of several groups. It is backed as long as one of them is.
    """

    def __init__(
        self,
        buffer: Any,
        found: Iterable[Segment],
        blocks: int,
        *,
        clear: Callable[[int, int], object],
        stream: Callable[[], Any],
        headroom: int = 0,
        to_driver: bool = False,
    ) -> None:
        """With memory for no group yet.

        Args:
            buffer: a VirtualBuffer.
            found: where each block lies.
            blocks: their number.
            clear: makes the bytes [begin, end) zero.
            stream: the stream of the worker's kernels.
            headroom: bytes of the GPU that stay free, or in PyTorch's cache, when groups are
                backed.
            to_driver: give memory back to the driver, for other processes.

        Raises:
            NotOffered: a block does not lie in the buffer.
        """
        self._buffer, self._segments, self._blocks = buffer, sorted(set(found), key=str), blocks
        self._clear, self._stream = clear, stream
        self._headroom, self._to_driver = headroom, to_driver
        self._pages: Counter[int] = Counter()  # for each page, the groups that use it
        self._groups: set[int] = set()
        for each in self._segments:
            end = each.offset + (blocks - 1) * each.stride + each.span
            if each.offset < 0 or end > buffer.nbytes:
                raise NotOffered(
                    f"the elastic KV cache of {buffer.nbytes} bytes has no place for {each}"
                )
        self.size = group_size(self._segments)

    def describe(self) -> tuple[int, int, int]:
        """Blocks, blocks in a group, and the most bytes of a group."""
        groups = -(-self._blocks // self.size)
        some = {0, min(1, groups - 1), groups // 2, groups - 1}
        return self._blocks, self.size, PAGE * max(len(self._of(each)) for each in some)

    def back(self, groups: Iterable[int]) -> None:
        """Gives all of these groups memory, or none of them. The bytes of new pages are 0.

        vLLM makes its cache with zeros. Some kernels read slots that no token was written to, and
        multiply by 0 what they find: that must not be another tensor's NaN.

        Raises:
            OutOfMemory: there is no room.
        """
        wanted = [each for each in groups if each not in self._groups]
        pages: Counter[int] = Counter()
        for each in wanted:
            pages.update(self._of(each))
        runs = list(_runs(sorted(each for each in pages if each not in self._pages)))
        nbytes = sum(end - begin for begin, end in runs)
        self._check_room(nbytes)
        stream = self._stream()
        done: list[tuple[int, int]] = []
        try:
            for begin, end in runs:
                self._buffer.back(begin, end, stream)
                done.append((begin, end))
            self._hold_headroom(stream)
            for begin, end in runs:
                self._clear(begin, end)
        except BaseException:
            for begin, end in done:
                self._buffer.unback(begin, end, stream)
            raise
        self._pages.update(pages)
        self._groups.update(wanted)
        _count(nbytes)

    def unback(self, groups: Iterable[int]) -> None:
        """Takes the memory of those of the groups that have some.

        It serves later requests of this process in the order of the stream of the worker's kernels.
        All kernels that use these groups are in it: the worker gets this call after the steps that
        were scheduled before it, and no later step has a block of these groups.
        """
        over: list[int] = []
        for each in groups:
            if each not in self._groups:
                continue
            self._groups.discard(each)
            for page in self._of(each):
                self._pages[page] -= 1
                if not self._pages[page]:
                    del self._pages[page]
                    over.append(page)
        stream, nbytes = self._stream(), 0
        for begin, end in _runs(sorted(over)):
            self._buffer.unback(begin, end, stream)
            nbytes += end - begin
        _count(-nbytes)
        if self._to_driver and nbytes:
            _C.trim(self._buffer.device, nbytes)

    def close(self) -> None:
        """Takes the memory of all groups."""
        self.unback(sorted(self._groups))

    def _of(self, group: int) -> set[int]:
        """The pages that have bytes of a group."""
        first, last = group * self.size, min((group + 1) * self.size, self._blocks) - 1
        pages: set[int] = set()
        for each in self._segments:
            # Between blocks that lie far apart there are pages of others.
            apart = each.stride - each.span >= PAGE
            ends = [(b, b) for b in range(first, last + 1)] if apart else [(first, last)]
            for begin, end in ends:
                at = each.offset + begin * each.stride
                to = each.offset + end * each.stride + each.span
                pages.update(range(at // PAGE, -(-to // PAGE)))
        return pages

    def _hold_headroom(self, stream: Any) -> None:
        """Takes the headroom from the driver, so that it lies idle in this process. What the driver
        has free, another process may take at any moment."""
        if self._headroom:
            device = self._buffer.device
            _C.free(_C.malloc(self._headroom, device, stream_handle(stream)))

    def _check_room(self, nbytes: int) -> None:
        """Refuses what has no room, before any memory is taken."""
        if not self._headroom or not nbytes:
            return
        device = self._buffer.device
        held = _C.stats(device)
        cached = held["reserved_bytes.all.current"] - held["allocated_bytes.all.current"]
        free = _free_bytes(device) + cached
        if free - nbytes < self._headroom:
            raise OutOfMemory(
                f"the elastic KV cache wants {nbytes} bytes, of {free} that the GPU has free or "
                f"glake has cached, and leaves {self._headroom} for the model's activations "
                '(additional_config={"glake": {"headroom": ...}})'
            )


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Offsets [begin, end) of neighbouring pages."""
    begin = 0
    for at, page in enumerate(pages):
        if at + 1 == len(pages) or pages[at + 1] != page + 1:
            yield pages[begin] * PAGE, (page + 1) * PAGE
            begin = at + 1


def _count(nbytes: int) -> None:
    figures.add("vllm", "elastic_backed_bytes", nbytes)
    figures.peak("vllm", "elastic_backed_bytes", "elastic_backed_bytes_peak")


def _free_bytes(device: int) -> int:
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


class Ranks:
    """The memory of the block groups on all ranks; for ElasticQueue."""

    def __init__(self, rpc: Callable[..., list[Any]]) -> None:
        """As vLLM's executor calls its workers.

        Args:
            rpc: calls a function with each worker, and returns all results.
        """
        self._rpc = rpc

    def describe(self) -> tuple[int, int, int]:
        """Blocks, blocks in a group, and the most bytes of a group on a rank.

        Raises:
            GlakeError: the ranks differ.
        """
        told = self._rpc(describe_blocks)
        if len({each[:2] for each in told}) != 1:
            raise GlakeError(f"the ranks' KV caches differ (blocks, group, bytes): {told}")
        blocks, size, _ = told[0]
        return blocks, size, max(each[2] for each in told)

    def back(self, groups: list[int]) -> bool:
        """Gives the groups memory on all ranks, or on none."""
        texts = self._rpc(back_groups, args=(groups,))
        if all(each is None for each in texts):
            return True
        if any(each is None for each in texts):
            # A rank that had no room has none of these groups, and does nothing.
            self._rpc(unback_groups, args=(groups,))
        figures.add("vllm", "elastic_refusals", 1)
        return False

    def unback(self, groups: list[int]) -> None:
        """Takes the groups' memory on all ranks."""
        self._rpc(unback_groups, args=(groups,))
        figures.add("vllm", "elastic_returned_groups", len(groups))


def describe_blocks(worker: Any) -> tuple[int, int, int]:
    """BlockMemory.describe() of a worker.

    Args:
        worker: vLLM's worker.
    """
    return _of(worker).describe()


def back_groups(worker: Any, groups: list[int]) -> str | None:
    """Gives groups memory on a worker.

    Args:
        worker: vLLM's worker.
        groups: their numbers.

    Returns:
        None, or why there is no room.
    """
    try:
        _of(worker).back(groups)
    except OutOfMemory as error:
        return str(error)
    return None


def unback_groups(worker: Any, groups: list[int]) -> None:
    """Takes groups' memory on a worker.

    Args:
        worker: vLLM's worker.
        groups: their numbers.
    """
    _of(worker).unback(groups)


def _of(worker: Any) -> BlockMemory:
    memory = getattr(worker, ATTRIBUTE, None)
    if memory is None:
        raise InvalidArgument("this worker has no elastic KV cache")
    return memory  # type: ignore[no-any-return]


ATTRIBUTE = "_glake_block_memory"


def make(raw: Any, buffer: Any, views: Iterable[Any], blocks: int, **asked: Any) -> BlockMemory:
    """The memory of a cache that vLLM has made over a virtual buffer.

    Args:
        raw: the tensor over the whole buffer, of one byte an element.
        buffer: the buffer.
        views: the layers' tensors.
        blocks: their number.
        asked: BlockMemory's headroom and to_driver.
    """
    import torch

    base = raw.data_ptr()
    found = {each for view in views for each in segments(view, base, blocks)}
    return BlockMemory(
        buffer,
        found,
        blocks,
        clear=lambda begin, end: raw[begin:end].zero_(),
        stream=functools.partial(torch.cuda.current_stream, buffer.device),
        **asked,
    )
