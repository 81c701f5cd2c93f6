"""What a trace says without replaying it, in memory for its live blocks only."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glake.trace.format import Event, read_events
from glake.trace.replay import Holder

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class SizeClass:
    """Allocations of `least` bytes to below twice as many: how many, and their bytes in all."""

    least: int
    allocations: int
    bytes: int


@dataclass(frozen=True)
class StreamUse:
    """What a stream allocated, and how many record_stream lines name it."""

    stream: int
    allocations: int
    bytes: int
    recorded: int


@dataclass(frozen=True)
class TraceFacts:
    """A trace in figures. Sizes are bytes, events count from 0.

    ``peak_step`` is the step the peak fell in, None in set-up; ``holders`` what was live then by
    tag, the largest first ("": untagged); ``size_classes`` are powers of two.
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


class _Scan:
    """One reading of a trace's events."""

    def __init__(self) -> None:
        self.ops: Counter[str] = Counter()
        self.steps: tuple[int, int] | None = None
        self.live = self.peak = self.peak_event = self.blocks = self.peak_blocks = 0
        self.peak_step: int | None = None
        self.tagged = 0
        self.classes: Counter[int] = Counter()
        self.class_bytes: Counter[int] = Counter()
        self.streams: Counter[int] = Counter()
        self.stream_bytes: Counter[int] = Counter()
        self.recorded: Counter[int] = Counter()

    def see(self, number: int, event: Event) -> None:
        self.ops[event.op] += 1
        if event.op == "a":
            self._alloc(number, event)
        elif event.op == "f":
            self.live -= event.bytes
            self.blocks -= 1
        elif event.op == "r":
            self.recorded[event.stream] += 1
        else:
            self.steps = (self.steps[0] if self.steps else event.id, event.id)

    def _alloc(self, number: int, event: Event) -> None:
        self.live += event.bytes
        self.blocks += 1
        if self.live > self.peak:
            self.peak, self.peak_event, self.peak_blocks = self.live, number, self.blocks
            self.peak_step = self.steps[1] if self.steps else None
        least = event.bytes.bit_length() - 1
        self.classes[least] += 1
        self.class_bytes[least] += event.bytes
        self.streams[event.stream] += 1
        self.stream_bytes[event.stream] += event.bytes
        self.tagged += bool(event.tag)


def scan(path: str | os.PathLike[str]) -> TraceFacts:
    """Reads a trace twice: for its figures, and for who held what at the peak.

    Raises TraceError (a ValueError with file, line, field) for what no trace may hold; OSError.
    """
    seen = _Scan()
    reader = read_events(path)
    for number, event in enumerate(reader):
        seen.see(number, event)
    ops = seen.ops
    return TraceFacts(
        trace=os.fspath(path),
        header=reader.header,
        events=sum(ops.values()),
        allocations=ops["a"],
        frees=ops["f"],
        record_streams=ops["r"],
        steps=ops["s"],
        first_step=seen.steps[0] if seen.steps else None,
        last_step=seen.steps[1] if seen.steps else None,
        allocated_bytes=sum(seen.class_bytes.values()),
        peak_live_bytes=seen.peak,
        peak_event=seen.peak_event,
        peak_step=seen.peak_step,
        peak_live_blocks=seen.peak_blocks,
        end_live_bytes=seen.live,
        end_live_blocks=seen.blocks,
        tagged_allocations=seen.tagged,
        size_classes=[
            SizeClass(1 << least, count, seen.class_bytes[least])
            for least, count in sorted(seen.classes.items())
        ],
        streams=[
            StreamUse(each, seen.streams[each], seen.stream_bytes[each], seen.recorded[each])
            for each in sorted(seen.streams.keys() | seen.recorded.keys())
        ],
        holders=_holders(path, seen.peak_event),
    )


def _holders(path: str | os.PathLike[str], last: int) -> list[Holder]:
    """Who held what after event `last`."""
    live: dict[int, Event] = {}
    for number, event in enumerate(read_events(path)):
        if event.op == "a":
            live[event.id] = event
        elif event.op == "f":
            del live[event.id]
        if number == last:
            break
    sizes: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for event in live.values():
        sizes[event.tag] += event.bytes
        blocks[event.tag] += 1
    return [Holder(tag, size, blocks[tag]) for tag, size in sizes.most_common()]


def to_json(facts: TraceFacts) -> dict[str, Any]:
    """All of it as JSON values."""
    return dataclasses.asdict(facts)


def size_text(size: int) -> str:
    """Bytes for people: 68.65 GiB."""
    unit, value = 0, float(size)
    while value >= 1024 and unit < len(_UNITS) - 1:
        unit, value = unit + 1, value / 1024
    return f"{value:.2f}".rstrip("0").rstrip(".") + f" {_UNITS[unit]}"


def print_facts(facts: TraceFacts, console: Console, holders: int = 15) -> None:
    """Tables: the figures with the header, sizes, streams, and the largest holders at the peak."""
    # Foreign words are Text, since a markup string would read :100: as a picture.
    table = Table(title=Text(os.path.basename(facts.trace)), title_justify="left")
    table.add_column("what")
    table.add_column("figure", overflow="fold")
    for name, value in _rows(facts):
        table.add_row(name, value)
    for key, value in facts.header.items():
        table.add_row(Text(f"# {key}", style="dim"), Text(value))
    console.print(table)
    sizes = Table("size", "allocations", "bytes", title="Sizes", title_justify="left")
    for each in facts.size_classes:
        span = f"{size_text(each.least)} to {size_text(2 * each.least)}"
        sizes.add_row(span, f"{each.allocations:,}", size_text(each.bytes))
    console.print(sizes)
    streams = Table(
        "stream", "allocations", "bytes", "recorded on it", title="Streams", title_justify="left"
    )
    for use in facts.streams:
        cells = (f"{use.allocations:,}", size_text(use.bytes), f"{use.recorded:,}")
        streams.add_row(str(use.stream), *cells)
    console.print(streams)
    if facts.tagged_allocations:
        console.print(_holder_table(facts, holders))


def _rows(facts: TraceFacts) -> list[tuple[str, str]]:
    step = "set-up" if facts.peak_step is None else f"step {facts.peak_step}"
    steps = f", numbered {facts.first_step} to {facts.last_step}" if facts.steps else ""
    return [
        ("events", f"{facts.events:,}"),
        ("allocations", f"{facts.allocations:,}, {size_text(facts.allocated_bytes)} in all"),
        ("tagged", f"{facts.tagged_allocations:,}"),
        ("frees", f"{facts.frees:,}"),
        ("record_stream", f"{facts.record_streams:,}"),
        ("steps", f"{facts.steps:,}{steps}"),
        ("peak live", f"{size_text(facts.peak_live_bytes)} in {facts.peak_live_blocks:,} blocks"),
        ("at", f"event {facts.peak_event:,}, {step}"),
        (
            "live at the end",
            f"{size_text(facts.end_live_bytes)} in {facts.end_live_blocks:,} blocks",
        ),
    ]


def _holder_table(facts: TraceFacts, most: int) -> Table:
    table = Table(title="Largest holders at the peak", title_justify="left")
    table.add_column("bytes", justify="right")
    table.add_column("blocks", justify="right")
    table.add_column("tag", overflow="fold")
    for each in facts.holders[:most]:
        table.add_row(size_text(each.bytes), f"{each.blocks:,}", Text(each.tag or "(untagged)"))
    rest = facts.holders[most:]
    if rest:
        size, blocks = sum(each.bytes for each in rest), sum(each.blocks for each in rest)
        table.add_row(size_text(size), f"{blocks:,}", f"({len(rest):,} further tags)")
    return table
