"""Loads traces and replays them through allocation policies. It needs no GPU.

>>> trace = load_trace("job.trace.gz")
>>> result = replay(trace, "glake", capacity=80 << 30)
>>> result.oom is None, result.utilisation
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from glake import arguments
from glake.errors import InvalidArgument, ReplayError, WrongType
from glake.trace.format import parsed
from glake.trace.policies import known, named

if TYPE_CHECKING:
    from glake._C import Trace

__all__ = [
    "COST_TABLES",
    "MAX_CAPACITY",
    "NEVER",
    "DriverTime",
    "Holder",
    "Layout",
    "LayoutBlock",
    "LayoutSegment",
    "Exhaustion",
    "ReplayResult",
    "StepCost",
    "Timeline",
    "default_costs",
    "load_trace",
    "policies",
    "replay",
    "require_costs",
    "require_policy",
]

_MOST = (1 << 63) - 1

NEVER = -1
"""``complete_after`` for work that never completes until something waits for it."""


MAX_CAPACITY = 1 << 43
"""The largest capacity of a replay, 8 TiB: the simulator has no more granules."""


COST_TABLES = ("published", "a100-kvcached")
"""The built-in tables of what driver calls take (docs/trace-format.md, Driver time)."""


def _native() -> Any:
    return importlib.import_module("glake._C")


def policies() -> list[str]:
    """The policies by which a trace can be replayed. ``gmlake`` also takes a size:
    ``gmlake:64MiB``."""
    return list(known())


@dataclass(frozen=True)
class StepCost:
    """The cost of one step of a trace. Times are microseconds, modelled by the result's first
    table.

    Attributes:
        step: its number.
        driver_calls: the number of calls that manage memory.
        driver_us: the time of all driver calls.
        stream_waits: waits of a stream for another one, and of the host for a stream.
        growth_us: the part of driver_us for creating handles, and first mapping them, beyond the
            highest physical total so far. A job needs that time only once.
        event_calls: calls that make, end, record, query or wait for events, and calls that ask
            streams or wait for them.
        event_us: the part of driver_us of these calls.
    """

    step: int
    driver_calls: int
    driver_us: float
    stream_waits: int
    growth_us: float
    event_calls: int
    event_us: float


@dataclass(frozen=True)
class DriverTime:
    """The modelled driver time of a replay by one table of prices, in microseconds.

    Figures ``*_per_step`` are means over the second half of the steps; None: there is no step.

    Attributes:
        driver_us: as of :class:`StepCost`, of the whole replay.
        growth_us: as of :class:`StepCost`, of the whole replay.
        event_us: as of :class:`StepCost`, of the whole replay.
        driver_us_per_step: of driver_us.
        growth_us_per_step: of growth_us.
        event_us_per_step: of event_us.
    """

    driver_us: float
    growth_us: float
    event_us: float
    driver_us_per_step: float | None
    growth_us_per_step: float | None
    event_us_per_step: float | None


def default_costs() -> list[str]:
    """The default tables of driver prices: that of the simulator (``GLAKE_SIM_COSTS``), then the
    built-in ones."""
    in_force = os.environ.get("GLAKE_SIM_COSTS", "").strip()
    return list(dict.fromkeys([*([in_force] if in_force else []), *COST_TABLES]))


@dataclass(frozen=True)
class Holder:
    """The live blocks of one tag.

    Attributes:
        tag: the tag; "": untagged.
        bytes: the sum of its blocks' bytes.
        blocks: the number of its blocks.
    """

    tag: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Exhaustion:
    """Where a replay ran out of memory, and why.

    Attributes:
        event: the index of the event that failed, from 0.
        step: its step's number; None: during set-up.
        message: the reason.
        holders: the live blocks by tag, the largest first; empty for a trace without tags.
    """

    event: int
    step: int | None
    message: str
    holders: list[Holder] = field(default_factory=list)


@dataclass(frozen=True)
class LayoutBlock:
    """A stretch of a segment.

    Attributes:
        offset: where it begins in the segment.
        bytes: its size.
        state: "live", "free" or "pending" (freed, and kept until recorded streams are done).
        stream: 0 for idle memory of no stream.
    """

    offset: int
    bytes: int
    state: str
    stream: int


@dataclass(frozen=True)
class LayoutSegment:
    """A contiguous stretch of mapped memory.

    Attributes:
        name: its name, such as the arena's.
        bytes: its size.
        blocks: its blocks in address order. They leave no gap.
    """

    name: str
    bytes: int
    blocks: list[LayoutBlock]


@dataclass(frozen=True)
class Layout:
    """The memory that a device held after an event.

    Attributes:
        event: the event's index. If memory ran out, it is that of the refused request.
        segments: each physical byte is in one of them, once. Empty for a policy that places
            nothing (``bound``).
    """

    event: int
    segments: list[LayoutSegment]


@dataclass(frozen=True)
class Timeline:
    """Live and physical memory over time. The events are divided into runs, and each run has its
    largest values.

    Attributes:
        event: the first event of each run.
        live: the most live bytes of each run.
        physical: the most physical bytes of each run.
    """

    event: list[int]
    live: list[int]
    physical: list[int]


@dataclass(frozen=True)
class ReplayResult:
    """One trace replayed by one policy. Sizes are bytes.

    If memory ran out, all figures are of the events before that, and figures of steps are of the
    completed steps. Figures `*_per_step` are means over the second half of the steps; None: no step
    was completed.

    Attributes:
        trace: the trace's name.
        policy: the policy's name.
        capacity_bytes: the device's memory; None: without limit.
        peak_live_bytes: most bytes live at once, as requested.
        peak_physical_bytes: most physical memory held.
        utilisation: peak live over peak physical bytes.
        time_avg_utilisation: mean over events of live over physical bytes.
        min_capacity_bytes: the smallest capacity that fits; None: not asked for.
        driver_calls: reserve, create, map, set access, unmap, release, cudaMalloc and cudaFree
            calls.
        driver_calls_per_step: driver_calls in each step.
        driver_us_per_step: driver_us in each step.
        growth_us_per_step: growth_us in each step.
        event_calls_per_step: event_calls in each step.
        event_us_per_step: event_us in each step.
        stream_waits_per_step: stream_waits in each step.
        host_ns_alloc: median nanoseconds of an allocation on this machine.
        host_ns_free: median nanoseconds of a free.
        oom: the failing event; None: the trace ran to its end.
        complete_after: ticks until work completes; -1: never.
        events: how many were replayed.
        trace_peak_live_bytes: the most live bytes of the whole trace.
        driver_us: modelled microseconds of every driver call by the table `costs`.
        growth_us: the part of driver_us that creates and first maps handles (StepCost).
        event_calls: calls about events and streams (StepCost).
        event_us: the part of driver_us of these calls.
        stream_waits: waits of a stream for another one, and of the host for a stream.
        costs: the name of the table of prices.
        by_costs: the same times by every table that was named.
        steps: costs of each step.
        peak_event: the first event with the most physical memory; if memory ran out, the last event
            that was replayed; None: no event.
        timeline: live and physical bytes over time.
        layout: the layout after the event `layout_at`, else None.
    """

    trace: str
    policy: str
    capacity_bytes: int | None
    peak_live_bytes: int
    peak_physical_bytes: int
    utilisation: float | None
    time_avg_utilisation: float
    min_capacity_bytes: int | None
    driver_calls: int
    driver_calls_per_step: float | None
    driver_us_per_step: float | None
    growth_us_per_step: float | None
    event_calls_per_step: float | None
    event_us_per_step: float | None
    stream_waits_per_step: float | None
    host_ns_alloc: float | None
    host_ns_free: float | None
    oom: Exhaustion | None
    complete_after: int
    events: int
    trace_peak_live_bytes: int
    driver_us: float
    growth_us: float
    event_calls: int
    event_us: float
    stream_waits: int
    costs: str
    by_costs: dict[str, DriverTime]
    steps: list[StepCost]
    peak_event: int | None
    timeline: Timeline
    layout: Layout | None

    @property
    def is_bound(self) -> bool:
        """Whether the policy places nothing, so that it has no driver calls and no host time."""
        return named(self.policy).kind == "bound"


def load_trace(path: str | os.PathLike[str], name: str = "") -> Trace:
    """Parses a trace, plain or gzip (docs/trace-format.md).

    Args:
        path: the file's path.
        name: the trace's name; "": its path.

    Raises:
        TraceError: a line that no trace may hold, or a broken gzip stream.
        FileFailed: the file cannot be opened.
        WrongType: no path, or no text.
    """
    found: Trace = parsed(path, _native().parse_trace, name=name)
    return found


def _layout(event: int | None, segments: list[dict[str, Any]] | None) -> Layout | None:
    if event is None or segments is None:
        return None
    return Layout(
        event,
        [
            LayoutSegment(
                each["name"], each["bytes"], [LayoutBlock(*block) for block in each["blocks"]]
            )
            for each in segments
        ],
    )


def require_policy(name: str) -> None:
    """Checks that there is such a policy.

    Args:
        name: as of :func:`replay`.

    Raises:
        ReplayError: there is no such policy. The text names the known ones.
        WrongType: `name` is no text.
    """
    _native().require_policy(arguments.text("a policy", name))


def require_costs(names: Sequence[str]) -> list[str]:
    """The tables of driver prices with these names, each once.

    Args:
        names: as ``costs`` of :func:`replay`.

    Raises:
        ReplayError: there is no such table. The text names the known ones.
        WrongType: `names` has other values than text.
        InvalidArgument: an empty list.
    """
    tables = _tables(names)
    _native().require_costs(tables)
    return tables


def _tables(names: Sequence[str]) -> list[str]:
    several = isinstance(names, Sequence) and not isinstance(names, str | bytes)
    if not several or not all(isinstance(each, str) for each in names):
        raise WrongType(f"costs {names!r}: names of tables, such as {list(COST_TABLES)}")
    if not names:
        raise InvalidArgument(
            f"costs {names!r}: name at least one table of driver prices, such as {COST_TABLES[0]}"
        )
    return list(dict.fromkeys(names))


def _whole(name: str, value: int, least: int) -> int:
    number = arguments.count(name, value)
    if not least <= number <= _MOST:
        raise InvalidArgument(f"{name} {value!r}: from {least} to {_MOST}")
    return number


def _capacity(value: int | str | None) -> int | None:
    bytes_ = None if value is None else arguments.size("capacity", value)
    if bytes_ is not None and bytes_ > MAX_CAPACITY:
        raise ReplayError(f"a device of {bytes_} bytes: the largest has {MAX_CAPACITY} (8 TiB)")
    return bytes_


def _event(trace: Trace, index: int | str) -> int:
    if index == "peak":
        return trace.peak_live_event
    if isinstance(index, str):
        raise InvalidArgument(f'layout_at: {index!r} is neither an event nor "peak"')
    number = arguments.whole(index)
    if number is None:
        raise WrongType(f'layout_at {index!r}: the index of an event, "peak" or None')
    if not 0 <= number < trace.events:
        raise InvalidArgument(
            f"layout_at: {index} is not one of the {trace.events} events, which count from 0"
        )
    return number


def require_trace(trace: Trace) -> None:
    """Raises WrongType for a value that is not from load_trace()."""
    if not isinstance(trace, _native().Trace):
        raise WrongType(f"a trace, as load_trace() returns it, not {arguments.type_name(trace)}")


def _mean_of_second_half(values: list[float]) -> float | None:
    half = values[len(values) // 2 :]
    return sum(half) / len(half) if half else None


def _out_of_memory(raw: dict[str, Any]) -> Exhaustion:
    return Exhaustion(**{**raw, "holders": [Holder(*each) for each in raw["holders"]]})


def _driver_time(whole: dict[str, float], steps: list[dict[str, float]]) -> DriverTime:
    def mean(part: str) -> float | None:
        return _mean_of_second_half([step[part] for step in steps])

    return DriverTime(
        **whole,
        driver_us_per_step=mean("driver_us"),
        growth_us_per_step=mean("growth_us"),
        event_us_per_step=mean("event_us"),
    )


def replay(
    trace: Trace,
    policy: str = "glake",
    *,
    capacity: int | str | None = None,
    complete_after: int = 0,
    find_min_capacity: bool = False,
    timeline_points: int = 2000,
    driver_path: str = "",
    progress: Callable[[float], None] | None = None,
    layout_at: int | Literal["peak"] | None = None,
    costs: Sequence[str] | None = None,
) -> ReplayResult:
    """Replays a trace through a policy on a fresh device.

    Args:
        trace: from :func:`load_trace`.
        policy: one of :func:`policies`, or ``gmlake:64MiB``: GMLake, which stitches blocks from
            that size on. ``glake`` and ``compact`` run the real allocator core on the simulated
            driver. The process must hold no glake memory meanwhile.
        capacity: bytes of the device, or text such as "80GiB", up to MAX_CAPACITY. None: no limit,
            which is a device of 1 TiB.
        complete_after: how many events later work on a stream completes, or :data:`NEVER`.
        find_min_capacity: also find the smallest capacity that fits, to 0.1 %, by bisection (10 to
            20 replays).
        timeline_points: the most points that the timeline may have.
        driver_path: the simulator's library; "": the one beside glake's own.
        progress: called now and then with the share (0 to 1) of the present replay's events that
            are done.
        layout_at: the index of an event, from 0. The layout after this event is kept; it is None if
            memory ran out before. None: no layout is kept. "peak", as reports use: the event with
            the most live bytes of the trace, which is the same for every policy. If memory runs
            out, the layout is that after the refused request, when the policy had given back what
            it could.
        costs: the tables of prices for driver calls: names in COST_TABLES, or tables of the
            simulator's cost file; None: :func:`default_costs`. The figures of the result and of its
            steps are by the first table.

    Raises:
        ReplayError: unknown policy or table, a capacity above MAX_CAPACITY (for
            ``glake`` and ``compact`` also below 2 MiB), no simulator, or a policy whose books are
            broken. Running out of memory is a result, not an error.
        InvalidArgument: no size, a negative ``complete_after`` other than :data:`NEVER`, a
            ``layout_at`` that is no event of the trace, or no table.
        WrongType: an argument of another type.
    """
    require_trace(trace)
    tables = default_costs() if costs is None else _tables(costs)
    capacity = _capacity(capacity)
    event = None if layout_at is None else _event(trace, layout_at)
    arguments.function("progress", progress)
    raw: dict[str, Any] = _native().replay(
        trace,
        arguments.text("a policy", policy),
        capacity,
        _whole("complete_after", complete_after, NEVER),
        arguments.flag("find_min_capacity", find_min_capacity),
        _whole("timeline_points", timeline_points, 0),
        arguments.text("driver_path", driver_path),
        progress,
        event,
        tables,
        layout_at == "peak",
    )
    times = [each.pop("times") for each in raw["steps"]]
    steps = [StepCost(**each, **own[0]) for each, own in zip(raw["steps"], times, strict=True)]
    by_costs = {
        name: _driver_time(raw["times"][at], [own[at] for own in times])
        for at, name in enumerate(tables)
    }
    first = by_costs[tables[0]]
    live, physical = raw["peak_live_bytes"], raw["peak_physical_bytes"]
    return ReplayResult(
        trace=trace.name,
        policy=policy,
        capacity_bytes=capacity,
        peak_live_bytes=live,
        peak_physical_bytes=physical,
        utilisation=live / physical if physical else None,
        time_avg_utilisation=raw["time_avg_utilisation"],
        min_capacity_bytes=raw["min_capacity_bytes"],
        driver_calls=raw["driver_calls"],
        driver_calls_per_step=_mean_of_second_half([float(each.driver_calls) for each in steps]),
        driver_us_per_step=first.driver_us_per_step,
        growth_us_per_step=first.growth_us_per_step,
        event_calls_per_step=_mean_of_second_half([float(each.event_calls) for each in steps]),
        event_us_per_step=first.event_us_per_step,
        stream_waits_per_step=_mean_of_second_half([float(each.stream_waits) for each in steps]),
        host_ns_alloc=raw["host_ns_alloc"],
        host_ns_free=raw["host_ns_free"],
        oom=_out_of_memory(raw["oom"]) if raw["oom"] else None,
        complete_after=complete_after,
        events=raw["events"],
        trace_peak_live_bytes=trace.peak_live_bytes,
        driver_us=first.driver_us,
        growth_us=first.growth_us,
        event_calls=raw["event_calls"],
        event_us=first.event_us,
        stream_waits=raw["stream_waits"],
        costs=tables[0],
        by_costs=by_costs,
        steps=steps,
        peak_event=raw["peak_event"],
        timeline=Timeline(**raw["timeline"]),
        layout=_layout(
            raw["oom"]["event"] if layout_at == "peak" and raw["oom"] else event, raw["layout"]
        ),
    )
