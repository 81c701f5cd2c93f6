"""Advice on the allocator, from the figures of a job's replays: where another one would do better,
where each is better at something, and where the choice does not matter.

The thresholds are round numbers. Below them the gain would not be worth the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from glake.trace.digest import Digest, PolicyDigest
from glake.units import micros, share, size, times

WASTE_SHARE = 0.02
_ROOM_SHARE = 0.25
_DRIVER_US = 1000.0

_SWITCHES = {
    "glake": "GLAKE_ALLOCATOR=1",
    "compact": "GLAKE_ALLOCATOR=1 GLAKE_POLICY=compact",
    "native": "PyTorch's default",
    "expandable": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}


@dataclass(frozen=True)
class Advice:
    """``level`` is ``problem`` (the job does not run as it is), ``saving`` or ``note``. ``figure``
    is the number on which the advice rests."""

    level: str
    figure: str
    title: str
    text: str


def room(job: Digest) -> Iterator[Advice]:
    """Advises that nothing needs to change, if the job runs with much memory to spare. This is
    judged by PyTorch's default allocator. If that was not replayed, another one is taken."""
    capacity = job.capacity
    runs = [each for each in job.policies if each.fits and each.name in _SWITCHES]
    usual = next((each for each in runs if each.name == "native"), None)
    if capacity is None or not runs:
        return
    if usual is None:
        if job.policy("native") is not None:  # the default fails, so the choice matters
            return
        usual = min(runs, key=_need)
    spare = capacity - _need(usual)
    if spare < _ROOM_SHARE * capacity:
        return
    yield Advice(
        "note",
        size(spare),
        f"It fits with {size(spare)} to spare: nothing needs to change",
        f"{usual.name} runs the job in {size(_need(usual))} of the {size(capacity)}: "
        f"{size(spare)} ({share(spare, capacity)}) are left for a larger batch or a longer "
        "sequence. Another allocator brings nothing here; what follows is for a larger job.",
    )


def _need(each: PolicyDigest) -> int:
    """The bytes of the smallest device that is known to be enough: the smallest capacity, if it was
    searched."""
    least = each.result.min_capacity_bytes
    return each.result.peak_physical_bytes if least is None else least


def out_of_memory(job: Digest) -> Iterator[Advice]:
    """Names the policies that fail although there would be enough bytes."""
    capacity = job.capacity
    if capacity is None or job.peak.live > capacity:
        return
    for each in job.policies:
        oom = each.result.oom
        if oom is None or each.at_oom is None:
            continue
        free = capacity - each.at_oom.live
        hole = need = ""
        if each.layout is not None and each.layout.free:
            hole = (
                f" After that, it held {size(each.layout.free)} free in {each.layout.holes:,} "
                f"pieces, the largest {size(each.layout.largest_free)}."
            )
        if each.result.min_capacity_bytes is not None:
            need = f" It needs {size(each.result.min_capacity_bytes)}."
        cure = _cure(job) or (
            f" Live memory peaks at {size(job.peak.live)}: the capacity leaves "
            f"{size(capacity - job.peak.live)} above that."
        )
        yield Advice(
            "problem",
            size(free),
            f"{each.name} runs out of memory with memory not in use",
            f"{_where(oom.step)}, event {oom.event:,}: {size(each.at_oom.live)} of "
            f"{size(capacity)} are live, {size(free)} are not.{hole}{need}{cure}",
        )


def _cure(job: Digest) -> str:
    """The policies that run the job, the one with the least driver time first."""
    runs = [each for each in job.policies if each.fits and each.name in _SWITCHES]
    runs.sort(key=lambda each: each.result.driver_us_per_step or 0.0)
    told = [f"{each.name} ({_SWITCHES[each.name]}{_pays(each)})" for each in runs]
    return f" The job runs with {' or '.join(told)}." if told else ""


def _pays(each: PolicyDigest) -> str:
    cost = each.result.driver_us_per_step
    return "" if not cost else f"; {micros(cost)} a step in the driver"


def _where(step: int | None) -> str:
    return "In set-up" if step is None else f"In step {step}"


def headroom(job: Digest) -> Iterator[Advice]:
    """Names the memory that is left under glake, if the job could use it."""
    for each in job.policies:
        least, capacity = each.result.min_capacity_bytes, job.capacity
        if each.name != "glake" or least is None or capacity is None:
            continue
        if capacity - least < WASTE_SHARE * capacity or any(room(job)):
            continue
        yield Advice(
            "note",
            size(capacity - least),
            "Room to spare under glake",
            f"The job needs at least {size(least)} of the {size(capacity)}: "
            f"{size(capacity - least)} ({share(capacity - least, capacity)}) are left for a larger "
            "batch or a longer sequence.",
        )


def compared(job: Digest) -> Iterator[Advice]:
    """Compares glake with each model of another allocator, if both run the job. If one of the two
    is better at something and worse at nothing, it is recommended. If each is better at something,
    both sides are named. Of glake's policies the best one is compared."""
    own = [each for each in job.policies if each.own and each.fits]
    own.sort(key=lambda each: each.result.peak_physical_bytes)
    if not own or any(room(job)):
        return
    for each in job.policies:
        if not each.modelled or not each.fits:
            continue
        mine, sides = min(
            ((one, _sides(job, one, each)) for one in own), key=lambda pair: _merit(pair[1])
        )
        if sides.better and sides.worse:
            yield _both(mine, each, sides)
        elif sides.worse:
            yield _not_glake(mine, each, sides)
        else:
            rest = _cost(sides) + _beside_glake(mine, own) + _as_good(job, mine, each)
            yield from (replace(one.praise, text=one.praise.text + rest) for one in sides.better)


def _cost(sides: _Sides) -> str:
    """The price of a gain: losses that are too small to decide, but are named."""
    return f" What it costs: it {_listed(sides.dear)}." if sides.dear else ""


def _beside_glake(one: PolicyDigest, own: list[PolicyDigest]) -> str:
    """The price of `compact`, compared with glake's default policy."""
    usual = next((each for each in own if each.name == "glake"), None)
    if one.name != "compact" or usual is None:
        return ""
    ours, theirs = _times(one, usual)
    if ours is None or theirs is None or ours <= theirs or micros(ours) == micros(theirs):
        return ""
    held, least = size(usual.result.peak_physical_bytes), usual.result.min_capacity_bytes
    needs = "" if least is None else f", runs in {size(least)} at least"
    return (
        f" Beside {usual.name} it costs driver time: {micros(ours)} a step, modelled "
        f"by the table {one.result.costs} ({usual.name}: {micros(theirs)}; it holds up to {held}"
        f"{needs})."
    )


def _as_good(job: Digest, own: PolicyDigest, than: PolicyDigest) -> str:
    """Allocators other than `than` that do the job no worse than `own`."""
    told = [
        f"{each.name} ({_SWITCHES[each.name]}{_pays(each)})"
        for each in job.policies
        if each.modelled and each.fits and each.name in _SWITCHES and each is not than
        if not _sides(job, own, each).better
    ]
    return f" No worse than {own.name} here: {', '.join(told)}." if told else ""


@dataclass(frozen=True)
class _Side:
    """One figure in which two policies differ: the difference, both values, and glake's gain."""

    differs: str
    says: str
    praise: Advice


@dataclass(frozen=True)
class _Sides:
    """The figures in which one of glake's policies differs from another allocator. They are sorted
    into better and worse, and into differences that matter and smaller ones."""

    better: list[_Side]
    worse: list[_Side]
    slight: list[_Side]
    dear: list[_Side]


def _merit(sides: _Sides) -> int:
    """A rank, where lower is better: only gains, gains and losses, neither, only losses."""
    if sides.better:
        return 1 if sides.worse else 0
    return 3 if sides.worse else 2


def _sides(job: Digest, own: PolicyDigest, each: PolicyDigest) -> _Sides:
    sides = _Sides([], [], [], [])
    full = _full(job, own, each)
    for ours, theirs, least, make, told in (
        (*_leasts(own, each), 0.0, _needs_more, size),
        (*_helds(own, each), 0.0, _holds_more, size),
        (*_times(own, each), _DRIVER_US, _driver, micros),
    ):
        if ours is None or theirs is None:
            continue
        gap = abs(ours - theirs)
        enough = gap and gap >= (least or WASTE_SHARE * max(ours, theirs))
        if enough and not (full and make is _holds_more):
            (sides.better if ours < theirs else sides.worse).append(make(own, each, ours, theirs))
        elif ours < theirs and told(ours) != told(theirs):
            sides.slight.append(make(own, each, ours, theirs))
        elif theirs < ours and told(ours) != told(theirs) and not (full and make is _holds_more):
            sides.dear.append(make(own, each, ours, theirs))
    return sides


def _full(job: Digest, own: PolicyDigest, each: PolicyDigest) -> bool:
    """Whether a replay came near its capacity. Every caching allocator fills the memory up to a
    limit, so the memory held says much only below it."""
    most = max(own.result.peak_physical_bytes, each.result.peak_physical_bytes)
    return job.capacity is not None and most > (1 - WASTE_SHARE) * job.capacity


def _leasts(own: PolicyDigest, each: PolicyDigest) -> tuple[float | None, float | None]:
    return own.result.min_capacity_bytes, each.result.min_capacity_bytes


def _helds(own: PolicyDigest, each: PolicyDigest) -> tuple[float, float]:
    return own.result.peak_physical_bytes, each.result.peak_physical_bytes


def _times(own: PolicyDigest, each: PolicyDigest) -> tuple[float | None, float | None]:
    return own.result.driver_us_per_step, each.result.driver_us_per_step


def _needs_more(own: PolicyDigest, each: PolicyDigest, ours: float, theirs: float) -> _Side:
    live, saved = each.result.trace_peak_live_bytes, size(abs(theirs - ours))
    praise = Advice(
        "saving",
        saved,
        f"{each.name} needs a larger device than {own.name} does",
        f"It runs in no less than {size(theirs)} ({times(theirs, live)} the live memory), "
        f"{own.name} in {size(ours)} ({times(ours, live)}), {saved} less: {_SWITCHES[own.name]}.",
    )
    return _Side(saved, f"runs in {size(ours)} at least ({each.name}: {size(theirs)})", praise)


def _holds_more(own: PolicyDigest, each: PolicyDigest, ours: float, theirs: float) -> _Side:
    live, saved = each.result.peak_live_bytes, size(abs(theirs - ours))
    praise = Advice(
        "saving",
        saved,
        f"{each.name} holds {size(theirs - live)} that nobody uses",
        f"It takes {size(theirs)} from the device for {size(live)} of live memory "
        f"({times(theirs, live)}); {own.name} takes {size(ours)} for the same job, {saved} less: "
        f"{_SWITCHES[own.name]}.{_stranded(each)}",
    )
    return _Side(saved, f"holds up to {size(ours)} ({each.name}: {size(theirs)})", praise)


def _driver(own: PolicyDigest, each: PolicyDigest, ours: float, theirs: float) -> _Side:
    differs = f"{micros(abs(theirs - ours))} a step"
    praise = Advice(
        "saving",
        differs,
        f"{each.name} spends more time in the driver than {own.name}",
        f"{micros(theirs)} a step of mapping and allocation calls, modelled, mean over the second "
        f"half of the steps: {differs} above {own.name}, which makes "
        f"{own.result.stream_waits_per_step or 0.0:.1f} stream waits a step at this capacity.",
    )
    says = f"spends {micros(ours)} a step in the driver, modelled ({each.name}: {micros(theirs)})"
    return _Side(differs, says, praise)


def _stranded(each: PolicyDigest) -> str:
    layout = each.layout
    if layout is None or len(layout.free_by_stream) < 2:
        return ""
    main = max(layout.free_by_stream, key=lambda stream: layout.free_by_stream[stream])
    side = sum(layout.free_by_stream.values()) - layout.free_by_stream[main]
    if side < WASTE_SHARE * layout.physical:
        return ""
    return (
        f" At the job's peak {size(side)} of its free memory belong to other streams than {main}."
    )


def _both(own: PolicyDigest, each: PolicyDigest, sides: _Sides) -> Advice:
    return Advice(
        "note",
        sides.better[0].differs,
        f"{own.name} or {each.name}: each is better at something",
        f"{own.name} {_listed(sides.better)}; but it "
        f"{_listed(sides.worse + sides.dear)}. Take {own.name} "
        f"({_SWITCHES[own.name]}) where the first decides, {each.name} where the second does.",
    )


def _not_glake(own: PolicyDigest, each: PolicyDigest, sides: _Sides) -> Advice:
    switch = f" ({_SWITCHES[each.name]})" if each.name in _SWITCHES else ""
    gains = "is better in neither memory nor driver time"
    if sides.slight:
        gains = f"gains too little to matter: it {_listed(sides.slight)}"
    return Advice(
        "note",
        sides.worse[0].differs,
        f"{each.name} does this job better than {own.name}",
        f"{own.name} {_listed(sides.worse)}, and {gains}. Stay with {each.name}{switch}.",
    )


def _listed(sides: list[_Side]) -> str:
    return " and ".join(each.says for each in sides)
