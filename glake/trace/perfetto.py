"""Exports a trace and its replays in the Trace Event Format, which ui.perfetto.dev opens.

The source is Chromium's public document "Trace Event Format" (its JSON object form). A trace has no
times, so each event of the trace takes a microsecond of the picture.
"""

from __future__ import annotations

import contextlib
import gzip
import heapq
import json
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any

from glake.errors import InvalidArgument
from glake.trace.format import Event, read_events
from glake.trace.replay import ReplayResult
from glake.units import titled

_PROCESS = 1
_STEPS = 1  # thread of the steps' slices


def export(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    results: Sequence[ReplayResult] = (),
    *,
    points: int = 20000,
    blocks: int = 2000,
) -> None:
    """Writes a trace as Perfetto JSON, as gzip if `out` ends in .gz.

    It has counter tracks of live bytes and of each result's physical bytes, a slice for each step,
    an asynchronous slice for each of the `blocks` largest blocks, and a mark where a result ran out
    of memory. The events are divided into about `points` runs, and the live counter has the largest
    value of each. The memory that this takes grows only with the live blocks of the trace. Raises
    TraceError for a bad trace, and OSError.
    """
    if points < 1 or blocks < 0:
        raise InvalidArgument(f"points {points}, blocks {blocks}: at least 1 and 0")
    total, header = _count(path)
    with _opened(out) as file:
        file.write('{"displayTimeUnit": "ms", "otherData": ')
        facts = {"trace": titled(os.fspath(path)), "time": "1 us is 1 event", **header}
        json.dump(facts, file)
        file.write(',\n"traceEvents": [\n')
        separator = ""
        for event in _events(path, total, results, points, blocks):
            file.write(separator + json.dumps(event))
            separator = ",\n"
        file.write("\n]}\n")


@contextlib.contextmanager
def _opened(out: str | os.PathLike[str]) -> Iterator[IO[str]]:
    if os.fspath(out).endswith(".gz"):
        with open(out, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
            import io

            with io.TextIOWrapper(packed, encoding="utf-8") as text:
                yield text
    else:
        with open(out, "w", encoding="utf-8") as text:
            yield text


def _count(path: str | os.PathLike[str]) -> tuple[int, dict[str, str]]:
    reader = read_events(path)
    return sum(1 for _ in reader), reader.header


def _event(phase: str, name: str, time: int, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "ts": time, "pid": _PROCESS, "tid": _STEPS, **more}


def _events(
    path: str | os.PathLike[str],
    total: int,
    results: Sequence[ReplayResult],
    points: int,
    blocks: int,
) -> Iterator[dict[str, Any]]:
    name = titled(os.fspath(path))
    yield _event("M", "process_name", 0, args={"name": name})
    yield _event("M", "thread_name", 0, args={"name": "steps"})
    for result in results:
        yield from _physical(result)
    largest = _Largest(blocks)
    live = high = 0
    run = max(-(-total // points), 1)
    step: tuple[int, int] | None = None
    for number, event in enumerate(read_events(path)):
        if event.op == "s":
            yield from _step(step, number)
            step = (event.id, number)
        largest.see(number, event)
        live += {"a": event.bytes, "f": -event.bytes}.get(event.op, 0)
        high = max(high, live)
        if (number + 1) % run == 0 or number + 1 == total:
            at = number - number % run
            yield _event("C", "live bytes", at, args={"bytes": high})
            high = 0
    yield from _step(step, total)
    yield from largest.slices(total)


def _step(step: tuple[int, int] | None, end: int) -> Iterator[dict[str, Any]]:
    if step is not None:
        number, start = step
        yield _event("X", f"step {number}", start, dur=max(end - start, 1), cat="step")


def _physical(result: ReplayResult) -> Iterator[dict[str, Any]]:
    counter = f"physical bytes ({result.policy})"
    for at, size in zip(result.timeline.event, result.timeline.physical, strict=True):
        yield _event("C", counter, at, args={"bytes": size})
    if result.oom is not None:
        text = f"{result.policy}: out of memory"
        why = {"message": result.oom.message}
        yield _event("i", text, result.oom.event, s="p", cat="oom", args=why)


class _Largest:
    """The largest blocks of a trace, at whatever time they are live."""

    def __init__(self, most: int):
        self._most = most
        self._live: dict[int, tuple[int, int, int, str]] = {}
        self._found: list[tuple[int, int, int, int, str]] = []  # a heap, the smallest first

    def see(self, number: int, event: Event) -> None:
        if event.op == "a":
            self._live[event.id] = (event.bytes, number, event.stream, event.tag)
        elif event.op == "f":
            size, start, stream, tag = self._live.pop(event.id)
            self._keep((size, start, number, stream, tag))

    def _keep(self, block: tuple[int, int, int, int, str]) -> None:
        if len(self._found) < self._most:
            heapq.heappush(self._found, block)
        elif self._found and block > self._found[0]:
            heapq.heapreplace(self._found, block)

    def slices(self, total: int) -> Iterator[dict[str, Any]]:
        for size, start, stream, tag in self._live.values():
            self._keep((size, start, total, stream, tag))
        for number, block in enumerate(sorted(self._found, key=lambda each: each[1])):
            size, start, end, stream, tag = block
            # Blocks of one name share a track, under the name's last frame.
            name = tag.rpartition(";")[2] or "untagged"
            about: dict[str, Any] = {"cat": "block", "id": f"0x{number:x}"}
            facts = {"bytes": size, "stream": stream, "tag": tag}
            yield _event("b", name, start, **about, args=facts)
            yield _event("e", name, max(end, start + 1), **about)
