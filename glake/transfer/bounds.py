"""Computes the bound of a transfer: the highest rate that the machine allows.

The bound is the maximum flow in the capacity graph, with at most two relay GPUs on a path unless
`relays` says otherwise. (The planner may use three, and then exceeds a bound by two.) If host
memory is interleaved, every socket gives an equal part. HiGHS solves this as a linear program. It
knows nothing of chunks, latency or the planner. The planner and the engine are compared with it.
All rates are GB/s (1e9 bytes per second).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypedDict

from glake import arguments, extras
from glake._C import CapacityGraph
from glake.errors import GlakeError, InvalidArgument, InvalidDevice
from glake.platforms import for_people
from glake.transfer.place import Place, PlatformLike, ends, graph_of
from glake.typing import CopyEnd, Device

RELAYS = 2  # most relay GPUs on one path, as in the platforms file
PLANNED_RELAYS = 3  # in plans (kRelaysInARow, csrc/base/transfer_tuning.h)
_MOST_RELAYS = 16  # as many as the largest platform has GPUs


class Ends(TypedDict):
    """The places of a copy, as for `explain`.

    Attributes:
        dst: the place to copy to.
        src: the place to copy from.
    """

    dst: CopyEnd
    src: CopyEnd


@dataclass(frozen=True)
class Joint:
    """Bounds for copies that run together, in GB/s (1e9 bytes a second).

    Attributes:
        total: of the sum of their rates.
        fair: of each one's rate, if all get the same rate.
    """

    total: float
    fair: float


def bound(
    platform: PlatformLike | CapacityGraph,
    *,
    dst: CopyEnd,
    src: CopyEnd,
    host: str = "local",
    scales: Mapping[str, float] | None = None,
    exclude: Iterable[Device] = (),
    relays: int = RELAYS,
) -> float:
    """The most GB/s (1e9 bytes a second) of one transfer over paths of at most so many relays.

    Args:
        platform: a preset's name, a platforms file, a Topology or a capacity graph.
        dst: the place to copy to: "cuda:0" (or 0, a torch.device), "cpu:0" (a socket), or "cpu",
            which `host` places.
        src: the place to copy from, in the same form.
        host: where host memory lies. "local": on the GPU's socket. "interleaved": an equal part on
            each socket. "pages": an equal part on each socket, for every path.
        scales: edges ("cuda:0>N" or "g0>N") that run at a factor of their rate; 0: dead.
        exclude: GPUs that may not relay, each a number, "cuda:0" or a torch.device.
        relays: the most relay GPUs on one path.

    Raises:
        InvalidArgument: ends or edges that the platform does not have.
        InvalidDevice: GPUs that it does not have.
        PackageMissing: HiGHS is not installed (the extra `transfer`).
    """
    graph = scaled(graph_of(platform), scales)
    both = ends(graph, src, dst, host)
    return _Flow(graph, [both], set(barred(graph, exclude)), _most_relays(relays)).solve(fair=False)


def joint_bound(
    platform: PlatformLike | CapacityGraph,
    copies: Iterable[Ends],
    *,
    host: str = "local",
    scales: Mapping[str, float] | None = None,
    exclude: Iterable[Device] = (),
    relays: int = RELAYS,
) -> Joint:
    """Bounds of several transfers at once.

    Args:
        platform: as of bound().
        copies: the ends of each, such as {"dst": "cuda:0", "src": "cpu"}.
        host: as of bound().
        scales: as of bound().
        exclude: as of bound().
        relays: as of bound().

    Raises:
        GlakeError: as of bound().
    """
    graph = scaled(graph_of(platform), scales)
    demands = [ends(graph, one["src"], one["dst"], host) for one in _checked(copies)]
    flow = _Flow(graph, demands, set(barred(graph, exclude)), _most_relays(relays))
    return Joint(total=flow.solve(fair=False), fair=flow.solve(fair=True))


def _checked(copies: Iterable[Ends]) -> list[Ends]:
    sequence = isinstance(copies, (list, tuple, Iterator))
    given = list(copies) if sequence else []
    if sequence and not given:
        raise InvalidArgument("copies is empty: give the ends of one copy or more")
    for one in given if sequence else [copies]:
        if not sequence or not isinstance(one, Mapping) or set(one) != {"dst", "src"}:
            raise InvalidArgument(
                f"copies {one!r}: a list of ends, such as {{'dst': 'cuda:0', 'src': 'cpu'}}"
            )
    return given


def _most_relays(relays: int) -> int:
    most = arguments.whole(relays)
    if most is None or not 0 <= most <= _MOST_RELAYS:
        raise InvalidArgument(f"relays {relays!r}: a whole number from 0 to {_MOST_RELAYS}")
    return most


def scaled(graph: CapacityGraph, scales: Mapping[str, float] | None) -> CapacityGraph:
    """The graph with the rates of some edges multiplied by a factor. Raises InvalidArgument if
    there is no such edge."""
    if scales is None:
        return graph
    if not isinstance(scales, Mapping):
        raise InvalidArgument(f"scales {scales!r}: factors by edge, such as {{'cuda:0>N': 0.5}}")
    changed = graph.copy()
    shown = [for_people(name) for name in graph.edges()]
    numbers = {name: i for names in (shown, graph.edges()) for i, name in enumerate(names)}
    for name, factor in scales.items():
        number = isinstance(factor, Real) and 0 <= factor < _INFINITY
        if name not in numbers or not number:
            raise InvalidArgument(
                f"edge {name!r} at {factor} times its rate: edges are such as "
                f"{', '.join(shown[:3])}, factors from 0"
            )
        changed.set_rate(numbers[name], graph.rate(numbers[name]) * factor)
    return changed


def barred(graph: CapacityGraph, exclude: Iterable[Device]) -> tuple[int, ...]:
    """The GPUs that may not relay, each once, in order. Raises InvalidArgument for a value that is
    no GPU."""
    several = isinstance(exclude, Iterable) and not isinstance(exclude, str)
    return tuple(sorted({_barred(graph, gpu) for gpu in (exclude if several else (exclude,))}))


def _barred(graph: CapacityGraph, gpu: Any) -> int:
    try:
        if (number := arguments.device_number(gpu)) < graph.gpus:
            return number
    except InvalidDevice:
        pass
    last = graph.gpus - 1
    raise InvalidArgument(
        f'exclude {gpu!r}: GPUs that may not relay, such as [0] or ["cuda:0"], from 0 to {last}'
    )


class _Flow:
    """The linear program. Its columns are the flow of each demand over each edge, after 0, 1 or 2
    relays.

    Passing a GPU moves the flow to the next layer. From the last layer it can enter no GPU except
    the destination. It passes switches and root complexes within a layer.
    """

    def __init__(
        self,
        graph: CapacityGraph,
        demands: Sequence[tuple[Place, Place]],
        exclude: set[int],
        relays: int,
    ) -> None:
        self.columns: list[list[tuple[int, float]]] = []  # entries (row, value)
        self.rows: list[tuple[float, float]] = []  # lower, upper
        self.totals: list[int] = []  # the column of each demand's GB/s
        limits = graph.limits()
        limit_rows = [self._row(-_INFINITY, limit) for _, limit in limits]
        holds = defaultdict(list)
        for row, (terms, _) in zip(limit_rows, limits, strict=True):
            for edge, weight in terms:
                holds[edge].append((row, weight))
        edges: list[_Edge] = []
        for index, name in enumerate(graph.edges()):
            a, _, b = name.partition(">")
            edges.append((a, b, [(index, 1.0)]))
        for src, dst in demands:
            starts, stops = src.nodes(graph.sockets), dst.nodes(graph.sockets)
            closed = {f"g{gpu}" for gpu in exclude} - set(starts) - set(stops)
            hops: list[_Edge] = []
            if src.pages:
                starts, hops = ["M"], _of_pages(graph, src, True)
            elif dst.pages:
                stops, hops = ["M"], _of_pages(graph, dst, False)
            self._demand(edges + hops, holds, starts, stops, closed, relays)

    def _row(self, lower: float, upper: float) -> int:
        self.rows.append((lower, upper))
        return len(self.rows) - 1

    def _column(self, entries: list[tuple[int, float]]) -> int:
        self.columns.append(entries)
        return len(self.columns) - 1

    def _demand(
        self,
        edges: Sequence[_Edge],
        holds: dict[int, list[tuple[int, float]]],
        starts: list[str],
        stops: list[str],
        closed: set[str],
        relays: int,
    ) -> None:
        kept: dict[tuple[str, int], int] = {}  # rows: what enters a node in a layer also leaves it
        row = {node: self._row(0, 0) for node in starts + stops}
        for a, b, loads in edges:
            if a == b or a in closed or b in closed or a in stops or b in starts:
                continue
            if (a[0] in "mM" and a not in starts) or (b[0] in "mM" and b not in stops):
                continue
            for layer in range(relays + 1):
                after = layer + (b[0] == "g" and b not in stops)
                if after > relays or (a in starts and layer > 0):
                    continue
                entries = _loaded(holds, loads)
                for node, at, sign in ((a, layer, -1.0), (b, after, 1.0)):
                    if node in row:
                        entries.append((row[node], 1.0))
                    else:
                        if (node, at) not in kept:
                            kept[node, at] = self._row(0, 0)
                        entries.append((kept[node, at], sign))
                self._column(entries)
        # Each start gives an equal part of the total, and each end takes an equal part.
        self.totals.append(
            self._column(
                [(row[node], -1.0 / len(side)) for side in (starts, stops) for node in side]
            )
        )

    def solve(self, *, fair: bool) -> float:
        """The largest sum. With `fair`, the largest rate that all can have."""
        columns, rows = list(self.columns), list(self.rows)
        gains = dict.fromkeys(self.totals, 1.0)
        if fair:
            each: list[tuple[int, float]] = []
            for total in self.totals:
                columns[total] = [*columns[total], (len(rows), 1.0)]
                each.append((len(rows), -1.0))
                rows.append((0.0, _INFINITY))
            gains = {len(columns): 1.0}
            columns.append(each)
        return _maximum(columns, rows, gains)


_INFINITY = float("inf")
_Edge = tuple[str, str, list[tuple[int, float]]]  # from, to, the graph's edges it loads


def _of_pages(graph: CapacityGraph, memory: Place, source: bool) -> list[_Edge]:
    """The ways between each GPU and "M", memory whose socket changes every page. They are those of
    a plain copy, and load the ways to all sockets equally."""
    found: list[_Edge] = []
    for gpu in range(graph.gpus):
        at = Place(gpu=gpu).code
        route = graph.route(memory.code, at) if source else graph.route(at, memory.code)
        found.append(("M", f"g{gpu}", route) if source else (f"g{gpu}", "M", route))
    return found


def _loaded(
    holds: Mapping[int, list[tuple[int, float]]], loads: list[tuple[int, float]]
) -> list[tuple[int, float]]:
    """The (limit, load) pairs of one unit of flow over an edge."""
    found: dict[int, float] = defaultdict(float)
    for edge, share in loads:
        for row, weight in holds[edge]:
            found[row] += weight * share
    return list(found.items())


def _maximum(
    columns: Sequence[Sequence[tuple[int, float]]],
    rows: Sequence[tuple[float, float]],
    gains: dict[int, float],
) -> float:
    highspy = _solver()
    import numpy as np

    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(columns), len(rows)
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = np.array([gains.get(i, 0.0) for i in range(len(columns))])
    program.col_lower_ = np.zeros(len(columns))
    program.col_upper_ = np.full(len(columns), highspy.kHighsInf)
    program.row_lower_ = np.array([lower for lower, _ in rows])
    program.row_upper_ = np.array([upper for _, upper in rows])
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.cumsum([0, *map(len, columns)])
    program.a_matrix_.index_ = np.array([row for entries in columns for row, _ in entries])
    program.a_matrix_.value_ = np.array([value for entries in columns for _, value in entries])
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(program)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise GlakeError(f"HiGHS found no bound: {solver.getModelStatus()}")
    return float(solver.getObjectiveValue())


def require_solver() -> None:
    """Raises PackageMissing, with what to do, if bounds cannot be computed."""
    _solver()


def _solver() -> Any:
    return extras.needed("highspy", "a bound", "HiGHS", "transfer")
