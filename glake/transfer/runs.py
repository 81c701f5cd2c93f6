"""A copy between two strided arrays as parts: rows of (dst, src, bytes), each contiguous."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from glake.errors import InvalidArgument
from glake.transfer.buffers import ASK, Buffer, Raw, buffer_of

if TYPE_CHECKING:
    import numpy as np

    Parts = np.ndarray[Any, np.dtype[np.uint64]]
    Addresses = np.ndarray[Any, np.dtype[np.int64]]

# Beyond this many rows a copy is of single items of a transposed array: no link carries that well.
MOST_PARTS = 1 << 22


def parts_of(dst: Buffer, src: Buffer) -> Parts:
    """Rows (dst, src, bytes) that copy `src` to `dst` item by item.

    Equal shapes and item sizes, in any strides; or two contiguous buffers of equal bytes.
    InvalidArgument for others, and for overlapping items in `dst`.
    """
    import numpy as np

    if dst.contiguous and src.contiguous:
        if dst.bytes != src.bytes:
            raise InvalidArgument(
                f"the destination holds {dst.bytes} bytes, the source {src.bytes}: copy between "
                "equal sizes, or slice the larger"
            )
        return np.array([[dst.address, src.address, src.bytes]] * (src.bytes > 0), np.uint64)
    if dst.shape != src.shape or dst.item != src.item:
        raise InvalidArgument(
            f"{src} does not fit {dst}: arrays with gaps are copied between equal shapes and item "
            "sizes"
        )
    if any(stride == 0 and extent > 1 for stride, extent in zip(dst.strides, dst.shape, strict=True)):
        raise InvalidArgument(f"{dst} is expanded: several of its items are one place in memory")
    outer, run = _outer(dst, src)
    offsets = np.zeros((1, 2), np.int64)
    for extent, to, of in outer:
        if len(offsets) * extent > MOST_PARTS:
            raise InvalidArgument(
                f"a copy of {src} in more than {MOST_PARTS} pieces of {run} bytes: make one side "
                "contiguous first"
            )
        steps = np.arange(extent, dtype=np.int64)[:, None] * np.array([to, of], np.int64)
        offsets = (offsets[:, None, :] + steps[None, :, :]).reshape(-1, 2)
    parts = np.empty((len(offsets), 3), np.uint64)
    parts[:, 0] = (offsets[:, 0] + dst.address).astype(np.uint64)
    parts[:, 1] = (offsets[:, 1] + src.address).astype(np.uint64)
    parts[:, 2] = run
    return parts if run else parts[:0]


def _outer(dst: Buffer, src: Buffer) -> tuple[list[tuple[int, int, int]], int]:
    """The dimensions to step through, (extent, dst stride, src stride), outermost first, and the
    bytes contiguous on both sides inside them."""
    dims = [
        (extent, to, of)
        for extent, to, of in zip(dst.shape, dst.strides, src.strides, strict=True)
        if extent != 1
    ]
    if any(extent == 0 for extent, _, _ in dims):
        return [], 0
    # Memory order of the destination, so that a permuted pair (channels last) still has long runs.
    dims.sort(key=lambda dim: -abs(dim[1]))
    run = dst.item
    while dims and dims[-1][1] == run and dims[-1][2] == run:
        run *= dims.pop()[0]
    return dims, run


@dataclass(frozen=True, slots=True)
class Blocks:
    """`count` blocks of `bytes` bytes, each `stride` bytes after the last, from `address` on."""

    address: int
    stride: int
    count: int
    bytes: int
    device: int = ASK


def block_addresses(blocks: Any, index: Any = None) -> tuple[Buffer, Addresses, int]:
    """(memory, address of each block, bytes of a block): the blocks `index`, or all, in order.

    `blocks`: an array, whose blocks lie along its first dimension, or `Blocks`.
    InvalidArgument for an index outside them, and for blocks that are not contiguous.
    """
    import numpy as np

    if isinstance(blocks, Blocks):
        whole = buffer_of(Raw(blocks.address, blocks.bytes, blocks.device))
        count, stride, size = blocks.count, blocks.stride, blocks.bytes
    else:
        whole = buffer_of(blocks)
        if not whole.shape:
            raise InvalidArgument(f"{whole} has no first dimension to take blocks of")
        inner = replace(whole, shape=whole.shape[1:], strides=whole.strides[1:])
        if not inner.contiguous:
            raise InvalidArgument(f"{whole}: blocks along the first dimension must be contiguous")
        count, stride, size = whole.shape[0], whole.strides[0], inner.bytes
    chosen = np.arange(count, dtype=np.int64) if index is None else np.asarray(index)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" and chosen.size:
        raise InvalidArgument(
            f"index: expected whole numbers in one dimension, not {chosen.dtype} {chosen.shape}"
        )
    chosen = chosen.astype(np.int64)
    wrong = chosen[(chosen < 0) | (chosen >= count)]
    if len(wrong):
        raise InvalidArgument(f"block {wrong[0]} of {whole}: there are {count}, counted from 0")
    return whole, whole.address + chosen * stride, size
