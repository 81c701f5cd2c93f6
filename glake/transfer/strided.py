"""A copy between two strided arrays as parts: (dst, src, bytes), each contiguous on both sides."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import Any

from glake import arguments
from glake.errors import InvalidArgument
from glake.transfer.array_memory import ASK, ArrayMemory, memory_of, raw_memory
from glake.typing import Device

# In simcuda, whose batches follow measurements on an H100, 16 MiB in pieces of 64 KiB take 1.03 to
# 1.08 times as long as in one piece. In pieces of 16 KiB they take 4.4 to 9 times as long, and in
# pieces of 512 bytes over 100 times. To make an array contiguous on its own device takes a launch,
# and twice its bytes at the memory's rate.
SHORT_PART = 64 << 10
FEW_PARTS = 64
MOST_SHORT_PARTS = 1 << 16  # enqueueing these takes 1/6 s; a kernel does the same in 1 ms
MOST_PARTS = 1 << 22


@dataclass(slots=True)
class Parts:
    """Parts of a copy. `numbers` has three unsigned 64-bit numbers for each: dst, src, bytes."""

    numbers: Any
    count: int
    bytes: int


NONE = Parts(array("Q"), 0, 0)


def one_part(dst: int, src: int, size: int) -> Parts:
    """One part, or none if it has no bytes."""
    return Parts(array("Q", (dst, src, size)), 1, size) if size else NONE


def rows_of(dst: Any, src: Any, size: int) -> Parts:
    """Parts of `size` bytes from the addresses `src` to the addresses `dst`."""
    import numpy as np

    count = max(np.size(dst), np.size(src))
    if count == 0 or size == 0:
        return NONE
    rows = np.empty((count, 3), np.uint64)
    rows[:, 0], rows[:, 1], rows[:, 2] = dst, src, size
    return Parts(rows, count, count * size)


def joined(several: list[Parts]) -> Parts:
    """All of these parts, in order."""
    several = [parts for parts in several if parts.count]
    if len(several) <= 1:
        return several[0] if several else NONE
    numbers = array("Q")
    for parts in several:
        numbers.frombytes(memoryview(parts.numbers).cast("B"))
    return Parts(numbers, len(numbers) // 3, sum(parts.bytes for parts in several))


@dataclass(frozen=True)
class Layout:
    """How a strided copy goes. It steps through dimensions, each (extent, dst stride, src stride),
    the outermost first. Each step copies bytes that are contiguous on both sides."""

    outer: tuple[tuple[int, int, int], ...]
    part_bytes: int

    @property
    def count(self) -> int:
        """The number of parts."""
        count = 1
        for extent, _, _ in self.outer:
            count *= extent
        return count

    @property
    def short(self) -> bool:
        """Whether the pieces are many and small. If so, it is faster to make the array contiguous
        first."""
        return self.part_bytes < SHORT_PART and self.count > FEW_PARTS


def check_fit(dst: ArrayMemory, src: ArrayMemory) -> bool:
    """Whether both are contiguous. Raises InvalidArgument unless `src` can be copied to `dst`. That
    requires equal shapes and item types, in any strides, or two contiguous arrays of equally many
    bytes."""
    if dst.dtype != src.dtype and dst.typed and src.typed:
        raise InvalidArgument(
            f"{src} does not fit {dst}: a copy converts nothing; view one as the other's dtype, or "
            "convert it first"
        )
    if dst.contiguous and src.contiguous:
        if dst.bytes != src.bytes:
            raise InvalidArgument(
                f"the destination, {dst}, has {dst.bytes} bytes, the source, {src}, has "
                f"{src.bytes}: copy between equal sizes, or slice the larger"
            )
        return True
    ends = (("source", src), ("destination", dst))
    if dst.shape != src.shape or dst.item != src.item:
        loose = " and ".join(f"the {name}" for name, end in ends if not end.contiguous)
        raise InvalidArgument(
            f"the source, {src}, does not fit the destination, {dst}: shapes and item sizes must "
            f"be equal, because one end is not C-contiguous: {loose}. Make it contiguous first, "
            "or view both in one shape"
        )
    if any(step == 0 and extent > 1 for step, extent in zip(dst.strides, dst.shape, strict=True)):
        raise InvalidArgument(f"{dst} is expanded: several of its items are one place in memory")
    return False


def layout_of(dst: ArrayMemory, src: ArrayMemory) -> Layout:
    """The layout of a copy between two arrays that fit each other and are not both contiguous."""
    dims = [
        (extent, to, of)
        for extent, to, of in zip(dst.shape, dst.strides, src.strides, strict=True)
        if extent != 1
    ]
    # The order of the dimensions is that of the destination's memory, so that a permuted pair
    # (channels last) still has long pieces.
    dims.sort(key=lambda dim: -abs(dim[1]))
    part_bytes = dst.item
    while dims and dims[-1][1] == part_bytes and dims[-1][2] == part_bytes:
        part_bytes *= dims.pop()[0]
    return Layout(tuple(dims), part_bytes)


def parts_of(dst: ArrayMemory, src: ArrayMemory, layout: Layout) -> Parts:
    """The parts that copy `src` to `dst` item by item. Raises InvalidArgument if there are too many
    pieces."""
    if layout.count > MOST_PARTS or (layout.short and layout.count > MOST_SHORT_PARTS):
        raise InvalidArgument(
            f"a copy of {src} in {layout.count} parts of {layout.part_bytes} bytes: make the side "
            "with gaps contiguous on its own device, and copy that"
        )
    import numpy as np

    offsets = np.zeros((1, 2), np.int64)
    for extent, to, of in layout.outer:
        steps = np.arange(extent, dtype=np.int64)[:, None] * np.array([to, of], np.int64)
        offsets = (offsets[:, None, :] + steps[None, :, :]).reshape(-1, 2)
    return rows_of(offsets[:, 0] + dst.address, offsets[:, 1] + src.address, layout.part_bytes)


def compacted(dst: ArrayMemory, src: ArrayMemory) -> tuple[ArrayMemory, ArrayMemory] | None:
    """Returns the pair, with `src` made contiguous on its own device in the memory order of `dst`.
    None if `dst` has gaps, or if `src` is not of torch, NumPy or CuPy."""
    order = sorted(range(len(dst.shape)), key=lambda dim: -abs(dst.strides[dim]))
    flat = replace(
        dst,
        shape=tuple(dst.shape[dim] for dim in order),
        strides=tuple(dst.strides[dim] for dim in order),
    )
    if not flat.contiguous or src.owner is None:
        return None
    owner = src.owner
    if hasattr(owner, "permute"):
        made = owner.detach().permute(order).contiguous()
    elif hasattr(owner, "transpose"):
        made = owner.transpose(order).copy(order="C")
    else:
        return None
    return flat, memory_of(made)


@dataclass(frozen=True, slots=True)
class Blocks:
    """`count` blocks of `bytes` bytes each. The first is at `address`, and each is `stride` bytes
    behind the one before.

    Args:
        address: of the first block.
        stride: bytes from the start of one block to that of the next.
        count: the number of blocks.
        bytes: the bytes of each block.
        device: the GPU (0, "cuda:0" or a torch.device); HOST: host memory; ASK: the driver is
            asked.
    """

    address: int
    stride: int
    count: int
    bytes: int
    device: Device = ASK


def _numbers(blocks: Blocks) -> tuple[int, int]:
    """(count, stride), from whole numbers of any library."""
    count, stride = arguments.whole(blocks.count), arguments.whole(blocks.stride)
    if count is None or stride is None:
        raise InvalidArgument(f"{blocks}: count and stride are whole numbers")
    return count, stride


def block_addresses(
    blocks: Any, index: Any = None, write: bool = False
) -> tuple[ArrayMemory, Any, int]:
    """Returns (memory, address of each block, bytes of a block), for the blocks `index` in their
    order, or for all.

    `blocks` is an array, whose blocks lie along its first dimension, or `Blocks`. Raises
    InvalidArgument for an index outside the blocks, and for blocks that are not contiguous.
    """
    import numpy as np

    if isinstance(blocks, Blocks):
        whole = raw_memory("Blocks", blocks.address, blocks.bytes, blocks.device)
        count, stride = _numbers(blocks)
        size = whole.bytes
        far = abs(stride) * max(count, 1) >= 1 << 63
        if count < 0 or far or (abs(stride) < size and count > 1):
            raise InvalidArgument(f"{blocks}: {count} blocks of {size} bytes every {stride} bytes")
    else:
        whole = memory_of(blocks, write)
        if not whole.shape:
            raise InvalidArgument(f"{whole} has no first dimension to take blocks of")
        inner = replace(whole, shape=whole.shape[1:], strides=whole.strides[1:])
        if not inner.contiguous:
            raise InvalidArgument(f"{whole}: blocks along the first dimension must be contiguous")
        count, stride, size = whole.shape[0], whole.strides[0], inner.bytes
        if write and stride == 0 and count > 1:
            raise InvalidArgument(f"{whole} is expanded: all its blocks are one place in memory")
    try:
        chosen = np.arange(count, dtype=np.int64) if index is None else np.asarray(index)
    except ValueError:  # such as a list of lists of different lengths
        raise InvalidArgument("index: expected whole numbers in one dimension") from None
    if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and chosen.size):
        raise InvalidArgument(
            f"index: expected whole numbers in one dimension, not {chosen.dtype} {chosen.shape}"
        )
    wrong = chosen[(chosen < 0) | (chosen >= count)]  # uint64 would make negative ones large
    if len(wrong):
        raise InvalidArgument(f"block {wrong[0]} of {whole}: there are {count}, counted from 0")
    chosen = chosen.astype(np.int64)
    return whole, whole.address + chosen * stride, size
