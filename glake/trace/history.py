"""Makes a trace, which names blocks, from an allocator's log, which names addresses.

A log may begin and end at any moment. So blocks may have been live before it, and parts of it may
be lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from glake import files
from glake.errors import ConvertError
from glake.trace.format import TraceWriter
from glake.units import counted

BEFORE_HISTORY = "before_history"
"""Tag of blocks allocated before the history began, where nothing better is known."""


class Entry(NamedTuple):
    """One action: "alloc", "free", "completed" (the end of a free, if it is logged) or "step". The
    address of a step is its number."""

    action: str
    address: int
    size: int = 0
    stream: int = 0
    tag: str = ""


@dataclass
class Conversion:
    """The result of a conversion: counts, and sentences on what could not be converted."""

    events: int = 0
    steps: int = 0
    before_history: int = 0
    peak_live_bytes: int = 0
    end_live_bytes: int = 0
    notes: list[str] = field(default_factory=list)


Entries = Callable[[], Iterable[Entry]]


def write(
    entries: Entries,
    held: Mapping[int, Entry],
    header: Mapping[str, object],
    out: str | os.PathLike[str],
) -> Conversion:
    """Writes a history as a trace. Blocks that were live before the history come first.

    The history is read twice, so each call of `entries` must start it from its beginning. `held`
    are the blocks that were live at its end, by address, if they are known. A file takes the place
    of `out` once it is whole. Raises FileFailed, and ConvertError if there is nothing to write.
    """
    result = Conversion()
    before = _live_before(entries(), held, result)
    result.before_history = len(before)
    facts = {**header, "blocks_before_history": len(before)}
    with files.replacing(os.fspath(out)) as place:
        with TraceWriter(place, facts) as writer:
            _History(writer, result).write(before, entries())
        if not result.events:
            raise ConvertError("no allocation and no free in it")
    return result


def _live_before(
    entries: Iterable[Entry], held: Mapping[int, Entry], result: Conversion
) -> list[Entry]:
    """The blocks that must have been live when the history began, in address order."""
    before: dict[int, Entry] = {}
    seen: set[int] = set()
    live: set[int] = set()
    for entry in entries:
        if entry.action == "alloc":
            live.add(entry.address)
        elif entry.action == "free" and entry.address not in seen:
            before[entry.address] = entry._replace(tag=BEFORE_HISTORY)
        if entry.action in ("free", "completed"):
            live.discard(entry.address)
        if entry.action != "step":
            seen.add(entry.address)
    for address, block in held.items():
        if address not in seen:
            before[address] = block._replace(tag=block.tag or BEFORE_HISTORY)
    odd = sum(address not in live for address in held.keys() & seen)
    odd += sum(address not in held for address in live)
    if odd and held:
        result.notes.append(
            f"{counted(odd, 'block is', 'blocks are')} live by the history and not by the "
            "segments, or the other way round: part of the history was not recorded"
        )
    return sorted(before.values(), key=lambda each: each.address)


class _History:
    """Writes blocks and events, and counts what a trace cannot say."""

    def __init__(self, writer: TraceWriter, result: Conversion):
        self._writer = writer
        self._result = result
        self._ids: dict[int, int] = {}
        self._streams = {0: 0}
        self._next_id = 0
        self._last_step = -1
        self._freed: int | None = None  # the address whose completion should come next
        self._twice = self._unmatched = self._held_back = 0

    def write(self, before: Iterable[Entry], entries: Iterable[Entry]) -> None:
        for entry in before:
            self._alloc(entry)
        completes = False
        for entry in entries:
            completes = completes or entry.action == "completed"
            self._see(entry)
        writer, result = self._writer, self._result
        writer.fact("peak_live_bytes", writer.peak_live_bytes)
        writer.fact("end_live_bytes", writer.live_bytes)
        result.peak_live_bytes = writer.peak_live_bytes
        result.end_live_bytes = writer.live_bytes
        self._note(completes)

    def _alloc(self, entry: Entry) -> None:
        # A stream is a pointer in a log, and a small number in a trace.
        stream = self._streams.setdefault(entry.stream, len(self._streams))
        self._writer.alloc(self._next_id, entry.size, stream, entry.tag)
        self._ids[entry.address] = self._next_id
        self._next_id += 1
        self._result.events += 1

    def _free(self, address: int) -> None:
        self._writer.free(self._ids.pop(address))
        self._result.events += 1

    def _see(self, entry: Entry) -> None:
        address = entry.address
        if self._freed is not None and (entry.action, address) != ("completed", self._freed):
            self._held_back += 1
        self._freed = None
        if entry.action == "step":
            if address > self._last_step:
                self._writer.step(address)
                self._last_step = address
                self._result.steps += 1
        elif entry.action == "alloc":
            if address in self._ids:
                self._free(address)
                self._twice += 1
            self._alloc(entry)
        elif address in self._ids:
            self._free(address)
            self._freed = address if entry.action == "free" else None
        elif entry.action == "free":
            self._unmatched += 1

    def _note(self, completes: bool) -> None:
        result, notes = self._result, self._result.notes
        if result.before_history:
            notes.append(
                f"{counted(result.before_history, 'block was', 'blocks were')} live before the "
                "history began, or allocated before what its ring buffer still held; what was live "
                "then stands at the trace's start"
            )
        if self._held_back and completes:
            notes.append(
                f"{self._held_back} frees completed late, so other streams used those blocks; the "
                "history does not say which, and the trace has no record_stream lines"
            )
        if self._twice:
            notes.append(
                f"{self._twice} addresses were allocated again with no free in the history; a free "
                "was put before each"
            )
        if self._unmatched:
            notes.append(f"{self._unmatched} frees of blocks already freed were left out")
        if not result.steps:
            notes.append("no step marks in it, so that figures per step will be missing")
