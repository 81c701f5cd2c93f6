"""Computes what other programs reach on the same graph, by plain copies or by GLake's equal shares.

GLake splits a copy between host and GPU into equal parts. They go over the GPU's own link and over
every NVLink peer outside its index pair (GPUs 2i and 2i + 1), whatever links these share. Between
GPUs without NVLink it takes one relay, and never splits. Rates are GB/s (1e9 bytes per second).
Copies that run together are counted as if all had the rate of the slowest one, because equal copies
that start together are done when the last one is. The result is the sum.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from glake._C import CapacityGraph
from glake.transfer import bounds
from glake.transfer.bounds import scaled
from glake.transfer.place import Place, PlatformLike, ends, graph_of
from glake.typing import CopyEnd, Device

Loads = dict[int, float]  # edge, load per unit of rate


def plain(
    platform: PlatformLike | CapacityGraph,
    copies: Iterable[tuple[CopyEnd, CopyEnd]],
    *,
    host: str = "local",
    scales: Mapping[str, float] | None = None,
) -> float:
    """GB/s of plain copies that run together. 0: one of them has no path. The arguments are those
    of `bound`."""
    graph = scaled(graph_of(platform), scales)
    return _together(graph, [_plain(graph, *ends(graph, *copy, host)) for copy in copies])


def equal_shares(
    platform: PlatformLike | CapacityGraph,
    copies: Iterable[tuple[CopyEnd, CopyEnd]],
    *,
    host: str = "local",
    scales: Mapping[str, float] | None = None,
    exclude: Iterable[Device] = (),
) -> float:
    """GB/s of copies that are split as in GLake and run together. The arguments are those of
    `bound`."""
    graph = scaled(graph_of(platform), scales)
    barred = set(bounds.barred(graph, exclude))
    loads = [_shares(graph, *ends(graph, *copy, host), barred) for copy in copies]
    return _together(graph, loads)


def _together(graph: CapacityGraph, loads: list[Loads]) -> float:
    if not all(loads):
        return 0.0
    rate = float("inf")
    for terms, limit in graph.limits():
        load = sum(weight * each.get(edge, 0.0) for edge, weight in terms for each in loads)
        if load > 0:
            rate = min(rate, limit / load)
    return rate * len(loads)


def _plain(graph: CapacityGraph, src: Place, dst: Place) -> Loads:
    loads: Loads = defaultdict(float)
    for edge, share in graph.route(src.code, dst.code):
        loads[edge] += share
    return dict(loads)


def _over(graph: CapacityGraph, src: Place, gpu: int, dst: Place) -> Loads:
    relay = Place(gpu=gpu)
    loads = defaultdict(float, _plain(graph, src, relay))
    for edge, share in _plain(graph, relay, dst).items():
        loads[edge] += share
    return dict(loads)


def _alive(graph: CapacityGraph, a: int, b: int) -> bool:
    """Whether NVLink joins two GPUs in both directions."""
    if not graph.linked(a, b) or not graph.linked(b, a):
        return False
    edges = graph.route((a, 0), (b, 0)) + graph.route((b, 0), (a, 0))
    return all(graph.rate(edge) > 0 for edge, _ in edges)


def shared_paths(
    graph: CapacityGraph, src: Place, dst: Place, barred: Iterable[int] = ()
) -> list[int | None]:
    """The paths to which GLake gives equal parts of a copy: relay GPUs, or None for the plain
    copy's own path."""
    shut = set(barred)
    if src.gpu is not None and dst.gpu is not None:
        return [_one_relay(graph, src, dst, shut)]
    own = src.gpu if src.gpu is not None else dst.gpu
    assert own is not None
    peers = [
        gpu
        for gpu in range(graph.gpus)
        if gpu // 2 != own // 2 and gpu not in shut and _alive(graph, gpu, own)
    ]
    return [None, *peers]


def _shares(graph: CapacityGraph, src: Place, dst: Place, barred: set[int]) -> Loads:
    relays = shared_paths(graph, src, dst, barred)
    loads: Loads = defaultdict(float)
    for relay in relays:
        part = _plain(graph, src, dst) if relay is None else _over(graph, src, relay, dst)
        for edge, share in part.items():
            loads[edge] += share / len(relays)
    return dict(loads)


def _one_relay(graph: CapacityGraph, src: Place, dst: Place, barred: set[int]) -> int | None:
    """The best relay between two GPUs that no NVLink joins."""
    assert src.gpu is not None and dst.gpu is not None
    if _alive(graph, src.gpu, dst.gpu):
        return None
    relays = [
        gpu
        for gpu in range(graph.gpus)
        if gpu not in barred | {src.gpu, dst.gpu}
        and _alive(graph, src.gpu, gpu)
        and _alive(graph, gpu, dst.gpu)
    ]
    return max(
        relays, key=lambda gpu: _together(graph, [_over(graph, src, gpu, dst)]), default=None
    )
