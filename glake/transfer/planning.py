"""Plans of one transfer from one place to another, as a caller sees them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from glake import arguments
from glake._C import CapacityGraph, TransferPlanner
from glake.errors import InvalidArgument, PackageMissing
from glake.transfer import baselines, bounds
from glake.transfer.place import Place, PlatformLike, ends, graph_of, place_name, topology_of
from glake.transfer.topology import Topology
from glake.typing import CopyEnd, Device, Json
from glake.units import round_size

_SMALLEST, _LARGEST = 64 << 10, 1 << 40  # bytes: the break-even size is sought in between
_HOST_TEXT = {
    "": "",
    "local": ", host memory on the GPU's socket",
    "interleaved": ", host memory interleaved over the sockets by chunks",
    "pages": ", host memory interleaved over the sockets by pages",
}


@dataclass(frozen=True)
class PlannedPath:
    """A path, its GB/s, its driver copies, and the GPU whose thread drives it."""

    name: str
    rate: float
    hops: tuple[tuple[str, str], ...]
    worker: int


@dataclass(frozen=True)
class RefusedPath:
    """A path that is not taken, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The paths of one transfer. Rates are GB/s (1e9 bytes a second); times are estimates.

    If every path is dead, there are no paths and the rates are 0. The refusals name the dead edges.

    Attributes:
        src: the place to copy from.
        dst: the place to copy to.
        bytes: of the copy.
        platform: the topology's name.
        host: where host memory lies: "local", "interleaved", "pages", "cpu:N", or "" if neither end
            is host memory.
        rate: the planned rate over all paths.
        plain: the rate of one plain copy.
        equal_split: the rate of GLake's equal shares.
        expected_us: microseconds of the planned copy; None where there is no path.
        plain_us: microseconds of a plain copy; None where there is no path.
        relays_from: the size in bytes from which several paths should pay off, by their links
            alone; None: never. A copy that is enqueued in a stream also takes the time of its
            driver calls. So it may be a plain copy up to a larger size.
        paths: the paths that it takes, each with its rate.
        refusals: the paths that it does not take, and why.
    """

    src: str
    dst: str
    bytes: int
    platform: str
    host: str
    rate: float
    plain: float
    equal_split: float
    expected_us: float | None
    plain_us: float | None
    relays_from: int | None
    paths: tuple[PlannedPath, ...]
    refusals: tuple[RefusedPath, ...]
    _bound: "_Bound" = field(repr=False, compare=False)

    @property
    def bound(self) -> float:
        """GB/s that no plan can exceed: maximum flow with at most three relays.

        Raises:
            PackageMissing: HiGHS is not installed (the extra `transfer`).
        """
        return self._bound.value

    def to_dict(self) -> dict[str, Json]:
        """Everything as JSON types. Without HiGHS `bound` is None, and `bound_absent` says why."""
        out: dict[str, Json] = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("_bound", "paths", "refusals")
        }
        bound, absent = self._bound.or_why()
        out |= {"bound": bound, "bound_absent": absent}
        out["paths"] = [
            asdict(path) | {"hops": [list(hop) for hop in path.hops]} for path in self.paths
        ]
        out["refusals"] = [asdict(refusal) for refusal in self.refusals]
        return out

    def __str__(self) -> str:
        """The plan in words: a few lines."""
        bound, absent = self._bound.or_why()
        memory = _HOST_TEXT.get(self.host, f", host memory of {self.host}")
        lines = [
            f"from {self.src} to {self.dst}, {round_size(self.bytes)} on {self.platform}{memory}",
            f"  planned      {self.rate:7.1f} GB/s{_estimate(self.expected_us)}",
            f"  bound        {absent}" if bound is None else f"  bound        {bound:7.1f} GB/s",
            f"  plain copy   {self.plain:7.1f} GB/s{_estimate(self.plain_us)}",
            f"  equal shares {self.equal_split:7.1f} GB/s",
        ]
        width = max((len(path.name) for path in self.paths), default=0)
        lines += [f"  over {path.name:<{width}} {path.rate:8.1f} GB/s" for path in self.paths]
        if not self.paths:
            lines.append("  no path: every way is dead, and copy() would be CopyFailed")
        if len(self.paths) > 1 and self.relays_from is not None:
            size = round_size(self.relays_from)
            lines.append(
                f"  several paths pay from {size} on (by the links alone; a copy that is enqueued "
                "in a stream must also pay for its driver calls)"
            )
        for reason, paths in _by_reason(self.refusals):
            more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            lines.append(f"  not {', '.join(paths[:3])}{more}: {reason}")
        return "\n".join(lines)


def _by_reason(refusals: Iterable[RefusedPath]) -> Iterable[tuple[str, list[str]]]:
    grouped: dict[str, list[str]] = {}
    for refusal in refusals:
        grouped.setdefault(refusal.reason, []).append(refusal.path)
    return grouped.items()


def _estimate(us: float | None) -> str:
    return "" if us is None else f", {us:.0f} us (estimate)"


class _Bound:
    """The bound, which is computed when it is first read."""

    def __init__(self, graph: CapacityGraph, ask: Mapping[str, Any]) -> None:
        self._graph, self._ask = graph, ask

    @cached_property
    def value(self) -> float:
        return bounds.bound(self._graph, relays=bounds.PLANNED_RELAYS, **self._ask)

    def or_why(self) -> tuple[float | None, str | None]:
        try:
            return self.value, None
        except PackageMissing as absent:
            return None, str(absent)


def explain(
    *,
    dst: CopyEnd,
    src: CopyEnd,
    nbytes: int,
    platform: PlatformLike = None,
    host: str = "interleaved",
    scales: Mapping[str, float] | None = None,
    exclude: Iterable[Device] = (),
) -> Plan:
    """Says how a copy would go: its paths, its rate, and which paths are refused. Copies nothing.

    `print()` shows the result as a few lines of text.

    Args:
        dst: the place to copy to, not an array: "cuda:3" (or 3, "gpu3", a torch.device), "cpu:0"
            (host memory of a socket) or "cpu".
        src: the place to copy from, in the same form.
        nbytes: the bytes of the copy.
        platform: a preset's name, a platforms file, a Topology; None: what GLAKE_DRIVER names.
        host: where "cpu" lies. "local": on the GPU's socket. "interleaved": on all sockets, by
            chunks. "pages": on all sockets, by pages.
        scales: edges ("cuda:0>N", or "g0>N" as in a file) that run at a factor of their rate; 0:
            dead.
        exclude: GPUs that may not relay, each a number, "cuda:0" or a torch.device.

    Raises:
        InvalidArgument: ends, sizes or edges that do not exist.
        InvalidDevice: GPUs that do not exist.
        InvalidOption: a platform that does not exist.
    """
    size = arguments.whole(nbytes)
    if size is None or not 0 < size <= _LARGEST:
        raise InvalidArgument(f"{nbytes!r} bytes: sizes are integers from 1 to 2**40")
    topology = topology_of(platform)
    graph = _graph(topology)
    both = ends(graph, src, dst, host)
    src, dst = place_name(graph, src), place_name(graph, dst)
    bounds.scaled(graph, scales)
    changed = tuple(sorted(scales.items())) if scales else ()
    way = _way(topology, src, dst, host, changed, bounds.barred(graph, exclude))
    answer = _answer(way.planner, both, size, graph.copy_ns)
    return Plan(
        src=src,
        dst=dst,
        bytes=size,
        platform=topology.name,
        host="" if all(place.gpu is not None for place in both) else _host_text(both, host),
        equal_split=way.equal_split,
        relays_from=way.relays_from,
        _bound=way.bound,
        **_sized(answer, size),
    )


@dataclass(frozen=True)
class _Way:
    """The part that is the same in plans of all sizes between two places."""

    planner: TransferPlanner
    equal_split: float
    relays_from: int | None
    bound: _Bound


# The keys contain every rate of the topology. So after links are measured again, plans are made
# again. Nobody changes a graph or a planner that is kept.
@lru_cache(maxsize=16)
def _graph(topology: Topology) -> CapacityGraph:
    return graph_of(topology)


@lru_cache(maxsize=256)
def _way(
    topology: Topology,
    src: str,
    dst: str,
    host: str,
    changed: tuple[tuple[str, float], ...],
    barred: tuple[int, ...],
) -> _Way:
    graph, scales = _graph(topology), dict(changed)
    both = ends(graph, src, dst, host)
    planner = planner_of(graph, scales, barred)
    shares = baselines.equal_shares(graph, [(src, dst)], host=host, scales=scales, exclude=barred)
    ask = {"src": src, "dst": dst, "host": host, "scales": scales, "exclude": barred}
    return _Way(planner, shares, _relays_from(planner, both, graph.copy_ns), _Bound(graph, ask))


def planner_of(
    graph: CapacityGraph, scales: Mapping[str, float] | None = None, exclude: Iterable[Device] = ()
) -> TransferPlanner:
    """The planner that the engine uses, with edges scaled and GPUs excluded. Raises
    InvalidArgument."""
    changed = bounds.scaled(graph, scales)
    planner = TransferPlanner(graph)
    for number in range(len(graph.edges())):
        factor = changed.rate(number) / graph.rate(number)
        if factor != 1:
            planner.set_scale(number, factor)
    for gpu in bounds.barred(graph, exclude):
        planner.set_relay(gpu, False)
    return planner


def _host_text(both: tuple[Place, Place], host: str) -> str:
    place = next(place for place in both if place.gpu is None)
    return host if place.node is None or host == "local" else f"cpu:{place.node}"


def _answer(
    planner: TransferPlanner, both: tuple[Place, Place], bytes: int, copy_ns: int
) -> dict[str, Any]:
    src, dst = both
    return planner.plan([(src.code, dst.code, 1.0)], bytes, copy_ns)[0]


def _relays_from(planner: TransferPlanner, both: tuple[Place, Place], copy_ns: int) -> int | None:
    size = _SMALLEST
    while size <= _LARGEST:
        answer = _answer(planner, both, size, copy_ns)
        if len(answer["paths"]) < 2:
            return None
        if answer["split"]:
            return size
        size *= 2
    return None


def _sized(answer: dict[str, Any], bytes: int) -> dict[str, Any]:
    """The part of the plan that a copy of this size uses. Below break-even it is the direct path
    alone."""
    paths = tuple(
        PlannedPath(
            name=path["name"],
            rate=path["rate"],
            hops=tuple((_name(a), _name(b)) for a, b, _ in path["hops"]),
            worker=path["worker"],
        )
        for path in answer["paths"]
    )
    refusals = [RefusedPath(*refusal) for refusal in answer["refusals"]]
    rate, expected_us = answer["rate"], answer["expected_us"]
    direct = tuple(path for path in paths if len(path.hops) == 1)
    if direct and len(paths) > len(direct) and not answer["split"]:
        reason = (
            f"at {round_size(bytes)} all paths would take {expected_us:.0f} us, a plain copy "
            f"{answer['plain_us']:.0f} us (estimate)"
        )
        refusals = [
            RefusedPath(path.name, reason) for path in paths if path not in direct
        ] + refusals
        paths, rate, expected_us = direct, answer["plain"], answer["plain_us"]
    return {
        "rate": rate,
        "plain": answer["plain"],
        "expected_us": expected_us if math.isfinite(expected_us) else None,
        "plain_us": answer["plain_us"] if math.isfinite(answer["plain_us"]) else None,
        "paths": paths,
        "refusals": tuple(refusals),
    }


def _name(place: tuple[int, int]) -> str:
    gpu, node = place
    if gpu >= 0:
        return f"cuda:{gpu}"
    return "cpu" if node < 0 else f"cpu:{node}"
