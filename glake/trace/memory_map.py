"""A policy's memory at one moment: sums, holes, and pieces for a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glake.trace.replay import LayoutBlock, LayoutSegment

UNIT = 512
"""Bytes of one unit of a tape: what both glake and PyTorch's allocator round to."""

FREE, LIVE, PENDING, MIXED = range(4)
_STATES = {"free": FREE, "live": LIVE, "pending": PENDING}

_FINEST_PIECES = 1 << 15


@dataclass(frozen=True)
class MemoryMap:
    """Sums over a policy's segments, in bytes. ``largest_free`` is the longest run of free bytes in
    one segment, ``holes`` the number of such runs, and ``free_by_stream`` the free bytes of each
    stream. ``tape`` is for drawing. It has the segments end to end: see :func:`summarise`."""

    physical: int
    live: int
    pending: int
    free: int
    segments: int
    blocks: int
    holes: int
    largest_free: int
    free_by_stream: dict[int, int]
    tape: list[Any]


@dataclass
class _Sums:
    live: int = 0
    pending: int = 0
    free: int = 0
    blocks: int = 0
    holes: int = 0
    largest_free: int = 0

    def add(self, size: int, state: int) -> None:
        if state == FREE:
            self.free += size
        elif state == LIVE:
            self.live += size
        else:
            self.pending += size


def _pieces(segment: LayoutSegment) -> Iterator[tuple[int, int, int | None]]:
    """(bytes, state, stream) of a segment's blocks. Bytes that no block covers are free."""
    at = 0
    for block in segment.blocks:
        if block.offset > at:
            yield block.offset - at, FREE, None
        yield block.bytes, _STATES[block.state], block.stream
        at = block.offset + block.bytes
    if at < segment.bytes:
        yield segment.bytes - at, FREE, None


def _tape(segments: Sequence[LayoutSegment], cell: int) -> list[Any]:
    """For each segment [name, flat list of integers]. Each run of blocks gives one integer: 4 x its
    units + its state. A run whose state is MIXED consists of several blocks, each smaller than a
    cell. Two more integers follow it: its live units and its pending units."""
    tape: list[Any] = []
    for segment in segments:
        runs: list[list[int]] = []  # [state, total, live, pending], in bytes
        for size, state, _ in _pieces(segment):
            live, pending = size * (state == LIVE), size * (state == PENDING)
            last = runs[-1] if runs else None
            small = size < cell
            if last is not None and last[0] == state == FREE:
                pass  # the two are one hole
            elif last is not None and small and last[1] < cell:
                last[0] = state if last[0] == state else MIXED
            else:
                runs.append([state, size, live, pending])
                continue
            last[1] += size
            last[2] += live
            last[3] += pending
        flat: list[int] = []
        for state, total, live, pending in runs:
            flat.append(4 * (total // UNIT) + state)
            if state == MIXED:
                flat += (live // UNIT, pending // UNIT)
        tape.append([segment.name, flat])
    return tape


def summarise(segments: Sequence[LayoutSegment], most_pieces: int = 4000) -> MemoryMap:
    """Adds up the segments of a replay's layout.

    The tape keeps every block if there are at most ``most_pieces`` runs. If there are more,
    neighbouring blocks smaller than a cell are added up. The cell's size is doubled until the runs
    fit. Raises KeyError for a state other than live, free and pending.
    """
    sums = _Sums()
    free_by_stream: dict[int, int] = {}
    for segment in segments:
        run = 0
        for size, state, stream in _pieces(segment):
            sums.add(size, state)
            sums.blocks += state != FREE
            if state == FREE:
                sums.holes += run == 0
                run += size
                sums.largest_free = max(sums.largest_free, run)
                if stream is not None:
                    free_by_stream[stream] = free_by_stream.get(stream, 0) + size
            else:
                run = 0
    physical = sum(segment.bytes for segment in segments)
    cell = max(physical // _FINEST_PIECES, UNIT)
    tape = _tape(segments, cell)
    while _length(tape) > most_pieces and cell < physical:
        cell *= 2
        tape = _tape(_merge_small(segments, cell), cell)
    return MemoryMap(
        physical=physical,
        live=sums.live,
        pending=sums.pending,
        free=sums.free,
        segments=len(segments),
        blocks=sums.blocks,
        holes=sums.holes,
        largest_free=sums.largest_free,
        free_by_stream=free_by_stream,
        tape=tape,
    )


def _length(tape: Sequence[Any]) -> int:
    return sum(1 + len(flat) for _, flat in tape)


def _merge_small(segments: Sequence[LayoutSegment], cell: int) -> list[LayoutSegment]:
    """Joins neighbouring segments that are smaller than a cell. The name of the joint one says how
    many there were."""
    merged: list[LayoutSegment] = []
    group: list[LayoutSegment] = []

    def close() -> None:
        if len(group) == 1:
            merged.append(group[0])
        elif group:
            blocks: list[LayoutBlock] = []
            base = 0
            for segment in group:
                blocks += [replace(each, offset=base + each.offset) for each in segment.blocks]
                base += segment.bytes
            merged.append(LayoutSegment(f"{len(group)} small segments", base, blocks))
        group.clear()

    for segment in segments:
        if segment.bytes >= cell:
            close()
            merged.append(segment)
            continue
        group.append(segment)
        if sum(each.bytes for each in group) >= cell:
            close()
    close()
    return merged
