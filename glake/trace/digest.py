"""Computes the numbers that a report shows of one trace and its replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glake.errors import InvalidArgument
from glake.trace import holders
from glake.trace.memory_map import MemoryMap, summarise
from glake.trace.policies import named
from glake.trace.replay import ReplayResult
from glake.units import printable

if TYPE_CHECKING:
    from glake._C import Trace

LEAST_EXPONENT = 8
"""The bucket of all requests below 512 bytes."""

LIVE_POINTS = 2000
"""Most points of a curve of live bytes, as many as a replay's timeline has."""


@dataclass(frozen=True)
class Span:
    """The live bytes of one step (None: set-up). Events are counted from 0."""

    step: int | None
    first_event: int
    events: int
    start_live: int
    peak_live: int
    peak_event: int

    @property
    def name(self) -> str:
        return "set-up" if self.step is None else f"step {self.step}"


@dataclass(frozen=True)
class Moment:
    """Who holds what after an event. ``lasting`` is the part in blocks that outlive the step in
    which they were made."""

    event: int
    live: int
    by_tag: list[holders.Holder]
    lasting: list[holders.Holder] = field(default_factory=list)

    @property
    def tagged(self) -> bool:
        return any(tag for tag, _, _ in self.by_tag)


@dataclass(frozen=True)
class PolicyDigest:
    """A replay: its memory map after ``map_event`` (None for a replay without a layout), the
    requested bytes that are live then, and who held what when memory ran out.

    With ``layout_at="peak"`` the event is the trace's peak of live memory, which is the same moment
    for all policies. If memory ran out, it is the request that was refused. ``layout`` is None for
    a policy that places nothing.
    """

    result: ReplayResult
    map_event: int | None
    layout: MemoryMap | None
    live_on_map: int
    at_oom: Moment | None

    @property
    def name(self) -> str:
        return self.result.policy

    @property
    def modelled(self) -> bool:
        return named(self.name).kind == "model"

    @property
    def own(self) -> bool:
        return named(self.name).kind == "own"

    @property
    def is_bound(self) -> bool:
        return self.result.is_bound

    @property
    def fits(self) -> bool:
        return self.result.oom is None


@dataclass(frozen=True)
class Digest:
    """One trace with its replays at one capacity. Sizes are bytes.

    ``static`` is the memory that stays allocated from step to step: the least live bytes at the
    starts of the steps after the first, and at the end. It is None for a trace of less than two
    steps. ``buckets`` are (exponent, allocations, bytes) of requests from 2^exponent up to twice
    that. The first one holds everything below 512 bytes, which all policies round up. ``live`` are
    (event, most live bytes) of runs of events over the whole trace. ``end_live`` are the live bytes
    at its end.
    """

    name: str
    header: dict[str, str]
    events: int
    allocations: int
    capacity: int | None
    complete_after: int
    spans: list[Span]
    peak: Moment
    static: int | None
    sizes: list[tuple[int, int]]
    buckets: list[tuple[int, int, int]]
    policies: list[PolicyDigest]
    live: list[tuple[int, int]] = field(default_factory=list)
    end_live: int | None = None

    def policy(self, name: str) -> PolicyDigest | None:
        return next((each for each in self.policies if each.name == name), None)

    @property
    def steps(self) -> list[Span]:
        return [span for span in self.spans if span.step is not None]

    def span_at(self, event: int) -> Span | None:
        """The step to which an event belongs."""
        earlier = [span for span in self.spans if span.first_event <= event]
        return earlier[-1] if earlier else None


def _static(spans: Sequence[Span], end_live: int) -> int | None:
    steps = [span for span in spans if span.step is not None]
    if len(steps) < 2:
        return None
    return min(*(span.start_live for span in steps[1:]), end_live)


def _buckets(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The buckets from the smallest to the largest, without gaps."""
    sums: dict[int, tuple[int, int]] = {}
    for size, count in sizes:
        exponent = max(size.bit_length() - 1, LEAST_EXPONENT)
        counted, total = sums.get(exponent, (0, 0))
        sums[exponent] = (counted + count, total + size * count)
    if not sums:
        return []
    return [(each, *sums.get(each, (0, 0))) for each in range(min(sums), max(sums) + 1)]


def _moment(trace: Trace, event: int) -> Moment:
    by_tag = trace.holders(event)
    return Moment(event, sum(size for _, size, _ in by_tag), by_tag, trace.lasting(event))


def _policy(trace: Trace, result: ReplayResult, pieces: int) -> PolicyDigest:
    oom, layout = result.oom, result.layout
    at_oom = None if oom is None or oom.event == 0 else _moment(trace, oom.event - 1)
    if layout is None:
        live = 0
    elif oom is not None and layout.event == oom.event:  # the refused request is not live
        live = at_oom.live if at_oom is not None else 0
    else:
        live = _moment(trace, layout.event).live
    placed = layout is not None and layout.segments
    return PolicyDigest(
        result=result,
        map_event=layout.event if layout is not None else None,
        layout=summarise(placed, pieces) if placed else None,
        live_on_map=live,
        at_oom=at_oom,
    )


def digest(
    trace: Trace,
    results: Sequence[ReplayResult],
    *,
    pieces: int = 4000,
) -> Digest:
    """Digests the replays of one trace (``load_trace``).

    Each replay with a layout has a memory map, of which at most ``pieces`` integers are kept.
    Raises InvalidArgument if there are no results.
    """
    if not results:
        raise InvalidArgument("a report needs at least one replay of the trace")
    spans = [Span(**each) for each in trace.step_spans()]
    sizes = [(size, count) for size, count in trace.sizes()]
    return Digest(
        name=trace.name,
        header=dict(trace.header),
        events=trace.events,
        allocations=trace.allocations,
        capacity=results[0].capacity_bytes,
        complete_after=results[0].complete_after,
        spans=spans,
        peak=_moment(trace, trace.peak_live_event),
        static=_static(spans, trace.end_live_bytes),
        sizes=sizes,
        buckets=_buckets(sizes),
        policies=[_policy(trace, each, pieces) for each in results],
        live=trace.live_timeline(LIVE_POINTS),
        end_live=trace.end_live_bytes,
    )


def facts(header: Mapping[str, str], most: int = 40) -> list[tuple[str, str]]:
    """The facts of the header that are worth showing, shortened and in the header's order. Facts
    that the report computes itself are left out."""
    computed = ("format", "allocations", "frees", "setup_allocations")
    shown = [
        (key, value)
        for key, value in header.items()
        if key not in computed and not key.endswith("_bytes")
    ]
    return [
        (shorten(printable(key), 80), shorten(printable(value), 200)) for key, value in shown[:most]
    ]


def shorten(text: str, most: int) -> str:
    """The text in at most `most` characters. An ellipsis stands for what is cut off."""
    return text if len(text) <= most else text[: most - 1] + "…"
