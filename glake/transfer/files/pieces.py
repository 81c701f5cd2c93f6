"""Cuts a range of a file into requests. It only computes, and touches no file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Direct I/O takes file offsets, lengths and addresses in multiples of the device's logical block.
# That is 512 or 4096 bytes, or a page on a file system that is in the page cache itself (tmpfs).
ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """`bytes` of the file from `offset` on. `start` is their place in the caller's memory."""

    offset: int
    start: int
    bytes: int

    @property
    def whole(self) -> bool:
        """Whether it consists of whole blocks of the file, so that direct I/O may take it."""
        return self.offset % ALIGNMENT == 0 and self.bytes % ALIGNMENT == 0


def cut(offset: int, size: int, block: int) -> Iterator[Piece]:
    """The pieces of [offset, offset + size). Each has at most `block` bytes, a multiple of
    ALIGNMENT.

    Only the first and the last few bytes, outside whole blocks of the file, are pieces that
    direct I/O cannot take.
    """
    at, end = offset, offset + size
    while at < end:
        if at % ALIGNMENT:
            to = min(end, at + ALIGNMENT - at % ALIGNMENT)
        else:
            to = min(end, at + block)
            if to - at > ALIGNMENT:
                to -= to % ALIGNMENT
        yield Piece(at, at - offset, to - at)
        at = to
