"""Facts of a trace without a replay. Finding them takes memory only for the trace's live blocks."""

from __future__ import annotations

import dataclasses
import importlib
import os
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glake.trace.format import parsed
from glake.trace.replay import Holder
from glake.units import counted, printable, size, size_range, titled


@dataclass(frozen=True)
class SizeClass:
    """Allocations from `least` bytes to below twice that: how many, and the sum of their bytes."""

    least: int
    allocations: int
    bytes: int


@dataclass(frozen=True)
class StreamUse:
    """The allocations of a stream, and how many record_stream lines name it."""

    stream: int
    allocations: int
    bytes: int
    recorded: int


@dataclass(frozen=True)
class TraceFacts:
    """The figures of a trace. Sizes are bytes, and events count from 0.

    ``peak_step`` is the step in which the peak fell; None: in set-up. ``holders`` are the live
    bytes at the peak by tag, the largest first ("": untagged). ``size_classes`` are powers of two.
    """

    trace: str
    header: dict[str, str]
    events: int
    allocations: int
    frees: int
    record_streams: int
    steps: int
    first_step: int | None
    last_step: int | None
    allocated_bytes: int
    peak_live_bytes: int
    peak_event: int
    peak_step: int | None
    peak_live_blocks: int
    end_live_bytes: int
    end_live_blocks: int
    tagged_allocations: int
    size_classes: list[SizeClass]
    streams: list[StreamUse]
    holders: list[Holder]


def scan(path: str | os.PathLike[str]) -> TraceFacts:
    """Reads a trace twice: for its figures, and for who held what at the peak.

    Raises OSError, and TraceError (a ValueError with file, line and field) for a line that no trace
    may hold.
    """
    native = importlib.import_module("glake._C")
    found: dict[str, Any] = parsed(path, native.scan_trace)
    classes = [SizeClass(*each) for each in found.pop("size_classes")]
    streams = [StreamUse(*each) for each in found.pop("streams")]
    held = parsed(path, native.scan_holders, found["peak_event"])
    events = sum(found[each] for each in ("allocations", "frees", "record_streams", "steps"))
    return TraceFacts(
        trace=os.fspath(path),
        events=events,
        allocated_bytes=sum(each.bytes for each in classes),
        size_classes=classes,
        streams=streams,
        holders=sorted((Holder(*each) for each in held), key=lambda each: (-each.bytes, each.tag)),
        **found,
    )


def to_json(facts: TraceFacts) -> dict[str, Any]:
    """All facts as JSON values."""
    return dataclasses.asdict(facts)


def print_facts(facts: TraceFacts, console: Console, holders: int = 15) -> None:
    """Prints tables: the figures with the header, sizes, streams, and the largest holders at the
    peak."""
    # Words of the trace are Text, because a markup string would show :100: as an emoji.
    table = Table(title=Text(titled(facts.trace)), title_justify="left")
    table.add_column("what")
    table.add_column("figure", overflow="fold")
    for name, value in _rows(facts):
        table.add_row(name, value)
    for key, value in facts.header.items():
        table.add_row(Text(printable(f"# {key}"), style="dim"), Text(printable(value)))
    console.print(table)
    sizes = Table("size", "allocations", "bytes", title="Sizes", title_justify="left")
    for each in facts.size_classes:
        span = size_range(each.least, 2 * each.least)
        sizes.add_row(span, f"{each.allocations:,}", size(each.bytes))
    console.print(sizes)
    streams = Table(
        "stream", "allocations", "bytes", "recorded on it", title="Streams", title_justify="left"
    )
    for use in facts.streams:
        cells = (f"{use.allocations:,}", size(use.bytes), f"{use.recorded:,}")
        streams.add_row(str(use.stream), *cells)
    console.print(streams)
    if facts.tagged_allocations:
        console.print(_holder_table(facts, holders))


def _rows(facts: TraceFacts) -> list[tuple[str, str]]:
    step = "set-up" if facts.peak_step is None else f"step {facts.peak_step}"
    steps = f", numbered {facts.first_step} to {facts.last_step}" if facts.steps else ""
    at_peak = f"{size(facts.peak_live_bytes)} in {counted(facts.peak_live_blocks, 'block')}"
    at_end = f"{size(facts.end_live_bytes)} in {counted(facts.end_live_blocks, 'block')}"
    return [
        ("events", f"{facts.events:,}"),
        ("allocations", f"{facts.allocations:,}, {size(facts.allocated_bytes)} in all"),
        ("tagged", f"{facts.tagged_allocations:,}"),
        ("frees", f"{facts.frees:,}"),
        ("record_stream", f"{facts.record_streams:,}"),
        ("steps", f"{facts.steps:,}{steps}"),
        ("peak live", at_peak),
        ("at", f"event {facts.peak_event:,}, {step}"),
        ("live at the end", at_end),
    ]


def _holder_table(facts: TraceFacts, most: int) -> Table:
    table = Table(title="Largest holders at the peak", title_justify="left")
    table.add_column("bytes", justify="right")
    table.add_column("blocks", justify="right")
    table.add_column("tag", overflow="fold")
    for each in facts.holders[:most]:
        table.add_row(
            size(each.bytes), f"{each.blocks:,}", Text(printable(each.tag) or "(untagged)")
        )
    rest = facts.holders[most:]
    if rest:
        held, blocks = sum(each.bytes for each in rest), sum(each.blocks for each in rest)
        table.add_row(size(held), f"{blocks:,}", f"({len(rest):,} further tags)")
    return table
