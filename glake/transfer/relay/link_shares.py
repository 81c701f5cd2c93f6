"""Shares the links of one machine among processes, and records who has which part.

All demands of all clients are planned together, max-min fair (csrc/plan/planner.h). A client's
part of a limit is the load of its own demands in that plan, plus an even share of what no demand
uses. A little of every limit is kept out of the plan. So a client's part is never zero, and its
first copy can begin at once. The parts of a limit never add up to more than all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from glake._C import CapacityGraph, TransferPlanner
from glake.errors import BadMessage
from glake.transfer.relay.protocol import Demand

KEPT = 0.04  # the part of every limit that is shared evenly, whatever the demands are
MOST_RELAYS = 4  # GPUs lent to a client that needs a CUDA context of its own on each
_STEPS = 1_000_000  # parts are rounded down to whole millionths
_LEAST_GAIN = 1.01
# Other clients may not relay over the GPUs of a demand that gets less than this part of its plain
# rate.
_FAIR = 0.99
_ROUNDS = 4


@dataclass
class Client:
    """One process: the GPUs that it uses, those over which it may relay, and its present copies."""

    gpus: tuple[int, ...]
    visible: int  # GPUs of the machine
    may: tuple[int, ...]  # GPUs that may relay for it
    served: bool  # whether the service copies on those GPUs for it
    relays: tuple[int, ...] = ()
    demands: tuple[Demand, ...] = ()
    parts: tuple[float, ...] = field(default=(), repr=False)
    rate: float = 0  # GB/s planned for all its demands

    @property
    def bits(self) -> int:
        """The GPUs that may relay for it, one bit each."""
        return sum(1 << gpu for gpu in {*self.gpus, *self.relays})


class Ledger:
    """Keeps the clients of one machine, by number."""

    def __init__(self, graph: CapacityGraph, most_relays: int | None = None) -> None:
        """Begins without a client. `most_relays` is the most GPUs that one client is lent. None:
        MOST_RELAYS, but all if the service copies on them for the client."""
        self._graph, self._most = graph, most_relays
        self._limits = graph.limits()
        self._planner = TransferPlanner(graph)
        self._planner.lend([1 - KEPT] * len(self._limits))
        self._any_gain = TransferPlanner(graph, relay_gain=_LEAST_GAIN)
        self._best: dict[tuple[object, ...], tuple[int, ...]] = {}
        self.clients: dict[int, Client] = {}

    @property
    def limits(self) -> list[tuple[str, float]]:
        """The name and GB/s of each limit, edges first."""
        names = self._graph.edges()
        return [("+".join(names[edge] for edge, _ in terms), most) for terms, most in self._limits]

    def join(
        self,
        number: int,
        gpus: Iterable[int],
        visible: int,
        seen: Iterable[int] | None = None,
    ) -> None:
        """Adds a client, which sees these GPUs (None: all). If it sees one of several, the service
        copies on the others for it in the service's own contexts. Raises BadMessage if the machine
        has no such GPUs."""
        if visible > self._graph.gpus:
            raise BadMessage(f"visible: {visible} GPUs, the topology has {self._graph.gpus}")
        may = self._known(range(visible) if seen is None else seen, visible)
        served = len(may) == 1 < visible
        may = tuple(range(visible)) if served else may
        client = Client(self._known(gpus, visible), visible, may, served)
        client.relays = self._relays_for(client)
        self.clients[number] = client

    def leave(self, number: int) -> None:
        """Removes a client that has ended. Its parts go to the others."""
        self.clients.pop(number, None)

    def want(self, number: int, gpus: Iterable[int], demands: Iterable[Demand]) -> None:
        """Sets all present copies of the client. Raises BadMessage if the machine has no such
        places."""
        client = self.clients[number]
        used = self._known(gpus, client.visible)
        asked: dict[tuple[int, int, int, int], float] = {}
        for a, b, c, d, weight in demands:
            for gpu, node in ((a, b), (c, d)):
                if gpu >= client.visible or (gpu < 0 and node >= self._graph.sockets):
                    raise BadMessage(f"demands: no place (cuda:{gpu}, socket {node}) here")
            key = a, 0 if a >= 0 else b, c, 0 if c >= 0 else d
            asked[key] = max(asked.get(key, 0), weight)  # same places: one demand
        if used != client.gpus:
            client.gpus = used
            client.relays = self._relays_for(client)
        client.demands = tuple((*key, weight) for key, weight in asked.items())

    def share(self) -> None:
        """Computes every client's part again, from the demands of all."""
        if not self.clients:
            return
        used = self._planned()
        if len(self.clients) == 1:
            for client in self.clients.values():
                client.parts = (1.0,) * len(self._limits)
            return
        even = 1 / len(self.clients)
        spare = [
            max(0.0, most - sum(each[i] for each in used.values()))
            for i, (_, most) in enumerate(self._limits)
        ]
        for number, client in self.clients.items():
            client.parts = tuple(
                _cut((mine + left * even) / most)
                for mine, left, (_, most) in zip(used[number], spare, self._limits, strict=True)
            )

    def _known(self, gpus: Iterable[int], visible: int) -> tuple[int, ...]:
        found = tuple(sorted(gpus))
        if found and found[-1] >= visible:
            raise BadMessage(f"gpus: no cuda:{found[-1]} among {visible} GPUs")
        return found

    def _planned(self) -> dict[int, list[float]]:
        """The load of each client on each limit, in GB/s."""
        owners = [number for number, client in self.clients.items() for _ in client.demands]
        demands = [demand for client in self.clients.values() for demand in client.demands]
        used = {number: [0.0] * len(self._limits) for number in self.clients}
        for client in self.clients.values():
            client.rate = 0
        if not demands:
            return used
        bits = [self.clients[number].bits for number in owners]
        asked = [((a, b), (c, d), weight) for a, b, c, d, weight in demands]
        plans = self._planner.plan(asked, relays=bits)
        for _ in range(_ROUNDS):
            if not self._spare_owners(plans, owners, demands, bits):
                break
            plans = self._planner.plan(asked, relays=bits)
        weights = self._edge_weights()
        for number, plan in zip(owners, plans, strict=True):
            self.clients[number].rate += plan["rate"]
            for path in plan["paths"]:
                for *_, route in path["hops"]:
                    for edge, part in route:
                        for limit, weight in weights[edge]:
                            used[number][limit] += path["rate"] * part * weight
        return used

    def _spare_owners(
        self, plans: list[dict[str, float]], owners: list[int], demands: list[Demand],
        bits: list[int],
    ) -> bool:  # fmt: skip
        """If a demand gets less than a plain copy would, its GPUs no longer relay for other
        clients. Returns whether that changed anything."""
        before = list(bits)
        for plan, owner, (a, _, b, _, _) in zip(plans, owners, demands, strict=True):
            if plan["rate"] >= _FAIR * plan["plain"]:
                continue
            barred = sum(1 << gpu for gpu in {a, b} if gpu >= 0)
            for i, other in enumerate(owners):
                if other != owner:
                    bits[i] &= ~barred
        return bits != before

    def _edge_weights(self) -> list[list[tuple[int, float]]]:
        found: list[list[tuple[int, float]]] = [[] for _ in self._graph.edges()]
        for limit, (terms, _) in enumerate(self._limits):
            for edge, weight in terms:
                found[edge].append((limit, weight))
        return found

    def _relays_for(self, client: Client) -> tuple[int, ...]:
        """The GPUs to lend to the client. Each step adds the GPU, or the two GPUs of one path, that
        speed up its copies to and from the host most. The search begins behind the client's own
        GPU, so that neighbours are lent different GPUs. GPUs that were lent stay lent, because the
        client has contexts there."""
        kept = tuple(gpu for gpu in client.relays if gpu not in client.gpus)
        if not client.gpus:
            return kept
        key = client.gpus, client.visible, client.may, client.served, kept
        if key not in self._best:
            self._best[key] = self._best_relays(client, kept)
        return self._best[key]

    def _best_relays(self, client: Client, kept: tuple[int, ...]) -> tuple[int, ...]:
        own = client.gpus[0]
        rest = [(own + step) % client.visible for step in range(1, client.visible)]
        rest = [g for g in rest if g in client.may and g not in {*client.gpus, *kept}]
        ways = [(gpu,) for gpu in rest] + self._pairs(own, rest)
        chosen = list(kept)
        most = self._most
        if most is None and client.served:
            return tuple(chosen + rest)  # they cost the client nothing
        most = MOST_RELAYS if most is None else most
        rate = self._reached(client, chosen)
        while rest and len(chosen) < most:
            room = most - len(chosen)
            ways = [way for way in ways if len(way) <= room and not {*way} & {*chosen}]
            rates = {way: self._reached(client, [*chosen, *way]) for way in ways}
            worth = {way: rate + (rates[way] - rate) / len(way) for way in ways}  # per GPU
            best = max(worth.values())
            more = next(way for way in ways if worth[way] > best * (1 - 1e-3))
            # A relay that brings nothing to these copies may still help copies between GPUs.
            if worth[more] < rate * _LEAST_GAIN:
                rest = [gpu for gpu in rest if self._linked(client, gpu)]
                return tuple(chosen + rest[:room])
            rate = rates[more]
            chosen += more
            rest = [gpu for gpu in rest if gpu not in more]
        return tuple(chosen)

    def _pairs(self, own: int, rest: list[int]) -> list[tuple[int, ...]]:
        """Pairs of relays in a row on one path. The one next to `own` comes first.

        The second relay of a pair is useless alone. A GPU that has its own links to and from `own`
        is useful alone, so it is never the second of a pair.
        """
        linked, near = self._graph.linked, [gpu for gpu in rest if self._next_to(gpu, own)]
        far = [gpu for gpu in rest if not (linked(gpu, own) and linked(own, gpu))]
        return [(a, b) for a in near for b in far if a != b and self._next_to(a, b)]

    def _next_to(self, a: int, b: int) -> bool:
        """Whether NVLink or one PCIe switch joins the GPUs, in either direction. A hop over a root
        complex brings copies to and from the host nothing."""
        names = self._graph.edges()
        for ends in (((a, 0), (b, 0)), ((b, 0), (a, 0))):
            route = self._graph.route(*ends)
            if route and not any("s" in names[edge] for edge, _ in route):
                return True
        return False

    def _linked(self, client: Client, gpu: int) -> bool:
        return any(self._graph.linked(gpu, own) for own in client.gpus)

    def _reached(self, client: Client, relays: list[int]) -> float:
        """The summed GB/s of copies between the client's first GPU and the host over these
        relays."""
        own = client.gpus[0]
        bits = sum(1 << gpu for gpu in {*client.gpus, *relays})
        total = 0.0
        for node in (-2, self._graph.socket_of(own)):
            for ends in (((-1, node), (own, 0)), ((own, 0), (-1, node))):
                total += self._any_gain.plan([(*ends, 1.0)], relays=[bits])[0]["rate"]
        return total


def _cut(part: float) -> float:
    """Rounds a part down to a millionth, so that the parts of a limit add up to at most all of
    it."""
    return min(1.0, math.floor(part * _STEPS) / _STEPS)
