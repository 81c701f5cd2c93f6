"""The report: one HTML file that contains everything, and can be opened anywhere, offline.

Tables, verdicts and advice are plain HTML. The file's script draws the charts from the file's JSON.
No text of a trace is trusted: Jinja2 escapes it, the script sets text and never markup, and a
content security policy forbids any other script and every request.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Sequence
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Any

import glake
from glake import arguments, extras
from glake.errors import FileFailed, InvalidArgument, PackageMissing, WrongType
from glake.trace import holders
from glake.trace.advice import advise
from glake.trace.digest import (
    LEAST_EXPONENT,
    Digest,
    PolicyDigest,
    digest,
    facts,
    shorten,
)
from glake.trace.format import opened
from glake.trace.memory_map import UNIT, MemoryMap
from glake.trace.policies import named
from glake.trace.replay import ReplayResult, require_trace
from glake.trace.report import to_json
from glake.trace.roles import by_role
from glake.units import counted, micros, printable, share, size, size_range, times, titled

if TYPE_CHECKING:
    from glake._C import Trace

_COLUMNS = (
    ("policy", "policy", "", "allocation policy"),
    ("fits", "fits", "", "whether the job ran to its end"),
    ("peak_physical_bytes", "physical", "peak", "most memory taken from the device"),
    ("x_live", "x live", "", "peak physical / peak live"),
    ("utilisation", "utilisation", "at the peak", "peak live / peak physical"),
    ("time_avg_utilisation", "utilisation", "time average", "mean over events, live / physical"),
    ("min_capacity_bytes", "smallest capacity", "that fits", "found by bisection, to 0.1 %"),
    ("driver_calls_per_step", "driver calls", "a step", "mean over the second half of the steps"),
    (
        "driver_us_per_step",
        "driver time",
        "a step, modelled",
        "mean over the second half, by each table of prices",
    ),
    ("stream_waits_per_step", "waits", "a step", "of streams for streams and of the host"),
    ("host_ns_alloc", "alloc", "host, median", "wall time of one call in this replay"),
    ("host_ns_free", "free", "host, median", "wall time of one call in this replay"),
)
# The figures that a policy of kind `bound` does not have, because it allocates nothing.
_OF_AN_ALLOCATOR = [
    key for key, *_ in _COLUMNS if "driver" in key or "waits" in key or "host" in key
]
_MOST_STEPS = 600
_MAP_ROWS = 36
_FAR = 2  # times the memory held: a capacity above this is named, and not drawn
_LONGEST_MESSAGE = 4000
_LONGEST_TITLE = 40
_PIECES = 60_000
"""The most integers in all memory maps of a report together. So the file stays below a megabyte."""


def available() -> bool:
    """Whether a report can be written: it needs Jinja2."""
    return extras.present("jinja2")


def absent(option: str = "an HTML report") -> str:
    """The sentence for a Python in which `available` is false."""
    return extras.missing(option, "Jinja2", "report")


def require_place(path: str | os.PathLike[str]) -> str:
    """The path of a report that can be written there, before the work of making one.

    Raises:
        PackageMissing: Jinja2 is not installed.
        WrongType: no path.
        FileFailed: no file can be made there.
    """
    place = arguments.path("a report", path)
    extras.needed("jinja2", "an HTML report", "Jinja2", "report")
    was_there = os.path.lexists(place) if "\0" not in place else True
    opened(place, "ab").close()
    if not was_there:
        os.unlink(place)
    return place


def write(
    path: str | os.PathLike[str],
    trace: Trace | Sequence[Trace],
    results: Sequence[ReplayResult],
) -> None:
    """Writes a report of the replays of one trace (or of several) into one HTML file.

    Args:
        path: the file. It is replaced if it exists.
        trace: from ``load_trace``, or a list of several. The results of a trace stand together.
        results: from ``replay``, each of one of the traces. Those with ``layout_at="peak"`` have a
            memory map in the report.

    Raises:
        PackageMissing: Jinja2 is not installed (the extra ``report``).
        InvalidArgument: no results, or results of a trace that is not given.
        WrongType: an argument is no path, trace or result of a replay.
        FileFailed: the file cannot be written.
    """
    path = arguments.path("a report", path)
    traces: list[Trace] = [*trace] if isinstance(trace, Sequence) else [trace]
    for each in traces:
        require_trace(each)
    if not isinstance(results, Sequence) or not all(isinstance(r, ReplayResult) for r in results):
        raise WrongType(f"results of replay(), in a list, not {results!r}")
    by_name = {each.name: each for each in traces}
    groups = [(name, list(each)) for name, each in groupby(results, key=lambda each: each.trace)]
    unknown = [name for name, _ in groups if name not in by_name]
    if unknown or not groups:
        what = f"results of {unknown[0]!r}, which is not given" if unknown else "no results"
        raise InvalidArgument(f"a report needs replays and their traces: {what}")
    pieces = max(_PIECES // len(results), 500)
    jobs = [digest(by_name[name], group, pieces=pieces) for name, group in groups]
    text = render(jobs)
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise FileFailed(error.errno, error.strerror, path) from None


def render(jobs: Sequence[Digest]) -> str:
    """The page, from one digest for each trace."""
    try:
        jinja2 = importlib.import_module("jinja2")
    except ImportError as missing:
        raise PackageMissing(absent()) from missing
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(size=size, share=share, percent=_percent)
    trusted = importlib.import_module("markupsafe").Markup
    script = "\n" + _asset("report.js")
    digest_of_script = hashlib.sha256(script.encode()).digest()
    page: str = environment.from_string(_asset("report.html")).render(
        title=", ".join(_title(job) for job in jobs[:3]) + (", ..." if len(jobs) > 3 else ""),
        css=trusted(_asset("report.css")),
        js=trusted(script),
        script_hash=trusted(base64.b64encode(digest_of_script).decode()),
        data=trusted(_embed([_data(job) for job in jobs])),
        jobs=[_job(job) for job in jobs],
        columns=_COLUMNS,
        version=glake.__version__,
    )
    return page


def _asset(name: str) -> str:
    return (resources.files("glake.trace") / "assets" / name).read_text(encoding="utf-8")


def _embed(value: Any) -> str:
    """The JSON text without characters that have a meaning in HTML, so that it cannot end the HTML
    around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for each in "<>&":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text


def _percent(part: float, whole: float) -> str:
    return f"{100 * min(part / whole, 1):.2f}" if whole else "0"


def _title(job: Digest) -> str:
    name, model = titled(job.name), printable(job.header.get("model", ""))
    return f"{model} ({name})" if 0 < len(model) <= _LONGEST_TITLE else name


def _colour(policy: str) -> str:
    return f"var(--c-{named(policy).name}, var(--c-other))"


def _job(job: Digest) -> dict[str, Any]:
    """The values that the template shows for one trace."""
    peak = job.peak.live
    return {
        "title": _title(job),
        "lead": f"{counted(job.allocations, 'allocation')} in {counted(len(job.steps), 'step')}, "
        f"{size(peak)} live at the peak"
        + (f", on a device of {size(job.capacity)}." if job.capacity else ", without a limit."),
        "facts": facts(job.header),
        "near": _near(job),
        "cards": [_card(job, each) for each in job.policies],
        "advice": advise(job),
        "rows": [_row(each.result) for each in job.policies],
        "assumptions": _assumptions(job),
        "ooms": [_oom(job, each) for each in job.policies if not each.fits],
        "maps": [_map(each, index) for index, each in enumerate(job.policies) if each.layout],
        "peak": _peak(job),
        "peak_bytes": peak,
        "roles": by_role(job.peak.by_tag, job.peak.lasting),
        "tree": holders.tree(job.peak.by_tag) if job.peak.tagged else None,
        "buckets": [
            {"label": _bucket(exponent), "count": count, "bytes": total}
            for exponent, count, total in job.buckets
        ],
        "most_count": max((count for _, count, _ in job.buckets), default=0),
        "most_bytes": max((total for _, _, total in job.buckets), default=0),
        "has_steps": bool(job.steps),
    }


def _bucket(exponent: int) -> str:
    """The bucket of sizes from 2^exponent to below twice that."""
    low, high = 1 << exponent, 2 << exponent
    return f"below {high} B" if exponent == LEAST_EXPONENT else size_range(low, high)


def _peak(job: Digest) -> str:
    span = job.span_at(job.peak.event)
    where = f" in {span.name}" if span else ""
    kept = (
        ""
        if not job.static
        else f" {size(job.static)} of live memory stay allocated from step to step."
    )
    return f"{size(job.peak.live)} are live after event {job.peak.event:,}{where}.{kept}"


def _assumptions(job: Digest) -> str:
    pace = {-1: "only when the host waits for it", 0: "at once"}.get(
        job.complete_after, f"{job.complete_after:,} events later"
    )
    return (
        f"Work on the device is taken to complete {pace}. Driver time is modelled, not measured; "
        "host times are of the machine the replay ran on."
    )


def _near(job: Digest) -> int | None:
    """The capacity. None if most of it stays empty, because bars on that scale would show
    nothing."""
    most = max(one.result.peak_physical_bytes for one in job.policies)
    return job.capacity if job.capacity and job.capacity <= _FAR * most else None


def _card(job: Digest, each: PolicyDigest) -> dict[str, Any]:
    result = each.result
    held, live = result.peak_physical_bytes, result.peak_live_bytes
    top = _near(job) or max(one.result.peak_physical_bytes for one in job.policies) or 1
    if each.is_bound:
        verdict = "fits, in principle" if each.fits else "no allocator can fit it"
        detail = f"no allocator can hold less than {size(held)} for {size(live)} of live memory"
    elif not each.fits:
        assert result.oom is not None
        where = "set-up" if result.oom.step is None else f"step {result.oom.step}"
        verdict = f"does not fit: out of memory in {where}"
        detail = f"held {size(held)} for {size(live)} of live memory until then"
    else:
        verdict = "fits" if job.capacity else f"takes {times(held, live)} the live memory"
        detail = f"holds at most {size(held)} for {size(live)} of live memory"
    if result.min_capacity_bytes is not None:
        detail += f"; runs in {size(result.min_capacity_bytes)} or more"
    return {
        "policy": each.name,
        "kind": named(each.name).title,
        "colour": _colour(each.name),
        "fits": each.fits,
        "verdict": verdict,
        "detail": detail,
        "parts": [(name, _percent(part, top)) for name, part in _parts(each, live, held)],
        "limit": "100" if _near(job) else None,
    }


def _parts(each: PolicyDigest, live: int, held: int) -> list[tuple[str, int]]:
    """The parts of the physical memory on the map: requested bytes, rounding, pending, free."""
    layout = each.layout
    if layout is None:
        return [("live", min(live, held)), ("free", max(held - live, 0))]
    asked = min(each.live_on_map, layout.live)
    return [
        ("live", asked),
        ("rounding", layout.live - asked),
        ("pending", layout.pending),
        ("free", layout.free),
    ]


def _row(result: ReplayResult) -> dict[str, Any]:
    raw = to_json(result)
    live = result.trace_peak_live_bytes
    shown: dict[str, Callable[[Any], str]] = {
        "peak_physical_bytes": size,
        "utilisation": lambda value: f"{100 * value:.1f} %",
        "time_avg_utilisation": lambda value: f"{100 * value:.1f} %",
        "min_capacity_bytes": lambda value: f"{size(value)} ({times(value, live)})",
        "driver_calls_per_step": lambda value: f"{value:,.1f}",
        "stream_waits_per_step": lambda value: f"{value:,.1f}",
        "host_ns_alloc": lambda value: f"{value:,.0f} ns",
        "host_ns_free": lambda value: f"{value:,.0f} ns",
    }
    cells: list[dict[str, Any]] = []
    for key, *_ in _COLUMNS:
        value = raw.get(key)
        text, css = "-", ""
        if key == "policy":
            value, text = None, result.policy
        elif key == "fits":
            text = css = "yes" if result.oom is None else "no"
        elif key == "x_live":
            text = times(result.peak_physical_bytes, result.peak_live_bytes)
        elif key == "driver_us_per_step" and value is not None and not result.is_bound:
            text = " | ".join(
                micros(under.driver_us_per_step or 0) for under in result.by_costs.values()
            )
        elif value is not None and not (result.is_bound and key in _OF_AN_ALLOCATOR):
            text = shown[key](value)
        cells.append({"key": key, "value": value, "text": text, "css": css})
    return {"policy": result.policy, "cells": cells}


def _oom(job: Digest, each: PolicyDigest) -> dict[str, Any]:
    oom = each.result.oom
    assert oom is not None
    where = "set-up" if oom.step is None else f"step {oom.step}"
    moment, layout = each.at_oom, each.layout
    books = ""
    if moment is not None:
        books = f"Just before, {size(moment.live)} were live"
        books += f" in a capacity of {size(job.capacity)}" if job.capacity else ""
        books += "."
        if layout is not None:
            books += f" Afterwards, {_layout_text(layout)}."
    return {
        "policy": each.name,
        "colour": _colour(each.name),
        "where": f"{where}, event {oom.event:,}",
        "message": shorten(printable(oom.message), _LONGEST_MESSAGE),
        "books": books,
        "live": moment.live if moment else 0,
        "tree": holders.tree(moment.by_tag) if moment and moment.tagged else None,
    }


def _layout_text(layout: MemoryMap) -> str:
    pending = f", {size(layout.pending)} freed with work pending" if layout.pending else ""
    free = (
        f"{size(layout.free)} free in {counted(layout.holes, 'hole')}, the largest "
        f"{size(layout.largest_free)}"
        if layout.free
        else "nothing free"
    )
    return (
        f"{size(layout.physical)} held in {counted(layout.segments, 'segment')}: "
        f"{size(layout.live)} in {counted(layout.blocks, 'block')}{pending}, {free}"
    )


def _map(each: PolicyDigest, index: int) -> dict[str, Any]:
    assert each.layout is not None
    what = "event" if each.fits else "the request that was refused, event"
    text = f"after {what} {each.map_event:,}: {_layout_text(each.layout)}"
    return {"policy": each.name, "colour": _colour(each.name), "index": index, "text": text}


def _changes(at: Sequence[int], values: Sequence[int]) -> tuple[list[int], list[int]]:
    """The points of a curve at which it changes."""
    kept = [i for i in range(len(values)) if i == 0 or values[i] != values[i - 1]]
    return [at[i] for i in kept], [values[i] for i in kept]


def _kept(steps: int) -> range:
    """Indices of steps, evenly spaced, and no more than a chart can show."""
    return range(0, steps, -(-steps // _MOST_STEPS) or 1)


def _data(job: Digest) -> dict[str, Any]:
    """The data that the script draws for one trace. Sizes are bytes, and those of tapes are in
    units."""
    physical = max((each.layout.physical for each in job.policies if each.layout), default=0)
    row = 1 << max((physical // _MAP_ROWS).bit_length(), 21)
    steps = job.steps
    kept = _kept(len(steps))
    return {
        "events": job.events,
        "capacity": job.capacity,
        "unit": UNIT,
        "row": row,
        "live": _changes([event for event, _ in job.live], [live for _, live in job.live]),
        # Step numbers are text, because JavaScript's numbers end at 2^53.
        "steps": [(span.name, span.first_event) for span in job.spans],
        "peaks": {
            "step": [str(steps[i].step) for i in kept],
            "live": [steps[i].peak_live for i in kept],
            "every": kept.step,
        },
        "policies": [_policy_data(each, kept) for each in job.policies],
    }


def _policy_data(each: PolicyDigest, steps: range) -> dict[str, Any]:
    result = each.result
    event, physical = _changes(result.timeline.event, result.timeline.physical)
    kept = [result.steps[i] for i in steps if i < len(result.steps)]
    return {
        "name": each.name,
        "bound": each.is_bound,
        "colour": _colour(each.name),
        "events": result.events,
        "oom": None if result.oom is None else result.oom.event,
        "event": event,
        "physical": physical,
        "step": [str(step.step) for step in kept],
        "us": [round(step.driver_us, 1) for step in kept],
        "calls": [step.driver_calls for step in kept],
        "waits": [step.stream_waits for step in kept],
        "tape": each.layout.tape if each.layout else None,
    }
