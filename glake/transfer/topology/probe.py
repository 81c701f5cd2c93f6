"""A short probe that replaces a topology's estimated rates by measured ones.

Written against a `Copier`, so that the same steps run on the simulator and on GPUs. Not yet seen on
hardware. What a few copies cannot separate stays as it was, and is noted: a link faster than all
that the GPUs behind it can ask for has no measurable rate, only a lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from glake.errors import DriverAbsent
from glake.platforms import Joint, Platform
from glake.transfer.topology.rates import ESTIMATE
from glake.transfer.topology.routes import Routes, Way, parents
from glake.transfer.topology.sources import Topology

_SATURATED = 0.95  # a total below this share of its parts: something they share was full
_POOR = 0.7  # a pair below this share of what the graph says is told


@dataclass(frozen=True)
class Copy:
    """From one node's memory to another's: "m0" (host memory of socket 0) or "g3"."""

    source: str
    target: str


class Copier(Protocol):
    """Times plain copies, however it makes them."""

    def rates(self, copies: Sequence[Copy]) -> Sequence[float]:
        """GB/s of each of these copies while all of them run; 0 for one that cannot be made."""
        ...


@dataclass(frozen=True)
class Calibration:
    """Measured rates by edge name, limits over both directions, and what is worth knowing."""

    rates: Mapping[str, float]
    joint: tuple[Joint, ...] = ()
    notes: tuple[str, ...] = ()

    def applied(self, topology: Topology) -> Topology:
        """The topology with these rates. Estimates' notes go once every edge is measured."""
        platform = topology.platform
        edges = tuple(
            replace(edge, gb_per_s=self.rates.get(edge.name, edge.gb_per_s))
            for edge in platform.edges
        )
        missing = [edge.name for edge in edges if edge.name not in self.rates]
        kept = [note for note in platform.assumed if missing or not note.startswith(ESTIMATE)]
        kept += self.notes
        if missing:
            kept.append(f"not measured, as before the probe: {', '.join(missing)}")
        measured = {name for each in self.joint for name, _ in each.weights}
        joint = [j for j in platform.joint if not measured & {name for name, _ in j.weights}]
        changed = replace(platform, edges=edges, joint=(*joint, *self.joint), assumed=tuple(kept))
        return replace(topology, platform=changed, source=f"{topology.source}, probed")


def probe(platform: Platform, copier: Copier) -> Calibration:
    """Measures one copy at a time, then what is shared, level by level. Seconds on a machine."""
    return _Probe(platform, copier).run()


def measure(topology: Topology, copier: Copier) -> Topology:
    """Probes the topology; a real machine's result is kept for later processes."""
    from glake.transfer.topology import calibration_cache

    found = probe(topology.platform, copier)
    if topology.devices:
        calibration_cache.store(topology, found)
    return found.applied(topology)


def driver_copier() -> Copier:
    """The copier over glake's driver. DriverAbsent while this build has none."""
    raise DriverAbsent(
        "this build of glake makes no copies to probe with yet: without --probe the rates are "
        "estimates, marked as such"
    )


class _Probe:
    def __init__(self, platform: Platform, copier: Copier) -> None:
        self._platform, self._copier = platform, copier
        self._routes = Routes(platform)
        self._above = parents(platform)
        self._found: dict[str, float] = {}
        self._joint: list[Joint] = []
        self._notes: list[str] = []

    def run(self) -> Calibration:
        own = {
            copy: self._alone(copy)
            for gpu in range(self._platform.gpus)
            for copy in self._host_pair(gpu, self._platform.socket_of(gpu))
        }
        self._own_links(own)
        self._switches()
        self._memories()
        self._socket_links()
        self._between_gpus()
        self._both_ways(own)
        rates = {name: round(rate, 2) for name, rate in self._found.items()}
        return Calibration(rates, tuple(self._joint), tuple(self._notes))

    def _host_pair(self, gpu: int, socket: int) -> tuple[Copy, Copy]:
        return Copy(f"m{socket}", f"g{gpu}"), Copy(f"g{gpu}", f"m{socket}")

    def _alone(self, copy: Copy) -> float:
        return self._copier.rates([copy])[0]

    def _set(self, source: str, target: str, rate: float) -> None:
        if rate > 0 and self._platform.rate(source, target) is not None:
            self._found[f"{source}>{target}"] = rate

    def _at_least(self, source: str, target: str, rate: float) -> None:
        """The edge carried this much without being full: its estimate stands unless too low."""
        before = self._platform.rate(source, target)
        if before is not None and before < rate:
            self._found[f"{source}>{target}"] = rate

    def _own_links(self, own: Mapping[Copy, float]) -> None:
        for copy, rate in own.items():
            down = copy.target[0] == "g"
            gpu = copy.target if down else copy.source
            above = self._above[gpu]
            self._set(*((above, gpu) if down else (gpu, above)), rate)

    def _below(self, node: str) -> list[str]:
        """The GPUs of which `node`, a switch or root, is an ancestor."""
        found = []
        for gpu in (f"g{index}" for index in range(self._platform.gpus)):
            above = gpu
            while above in self._above:
                above = self._above[above]
                if above == node:
                    found.append(gpu)
        return found

    def _together(self, gpus: Sequence[str], memory: str, down: bool) -> float:
        copies = [Copy(memory, gpu) if down else Copy(gpu, memory) for gpu in gpus]
        return sum(self._copier.rates(copies)) if copies else 0.0

    def _switches(self) -> None:
        """All GPUs below a switch at once: what they get together is its uplink's."""
        innermost_first = [node for node in reversed(self._above) if node[0] == "u"]
        for switch in innermost_first:
            root = self._above[switch]
            gpus = self._below(switch)
            memory = f"m{self._platform.socket_of(int(gpus[0][1:]))}" if gpus else "m0"
            for down in (True, False):
                ends = (root, switch) if down else (switch, root)
                total = self._together(gpus, memory, down)
                if total < _SATURATED * self._demand(switch, down):
                    self._set(*ends, total)
                    self._hidden(gpus, total, down)
                else:
                    self._at_least(*ends, total)

    def _hidden(self, gpus: Sequence[str], total: float, down: bool) -> None:
        """A GPU that alone fills the uplink has a link at least as fast: no more is known of it."""
        for gpu in gpus:
            rate = self._single(gpu, down)
            if rate >= _SATURATED * total:
                ends = (self._above[gpu], gpu) if down else (gpu, self._above[gpu])
                del self._found[">".join(ends)]
                self._at_least(*ends, rate)

    def _single(self, gpu: str, down: bool) -> float:
        above = self._above[gpu]
        return self._edge_rate(*((above, gpu) if down else (gpu, above)))

    def _demand(self, node: str, down: bool) -> float:
        """What hangs on a switch or root can ask for together, by what was measured below it."""
        total = 0.0
        for child in (child for child, above in self._above.items() if above == node):
            rate = self._edge_rate(node, child) if down else self._edge_rate(child, node)
            total += min(rate, self._demand(child, down)) if child[0] == "u" else rate
        return total

    def _edge_rate(self, source: str, target: str) -> float:
        known = self._found.get(f"{source}>{target}")
        return known if known is not None else self._platform.rate(source, target) or 0.0

    def _memories(self) -> None:
        for socket in range(len(self._platform.sockets)):
            gpus = self._below(f"s{socket}")
            for down in (True, False):
                ends = (f"m{socket}", f"s{socket}") if down else (f"s{socket}", f"m{socket}")
                total = self._together(gpus, f"m{socket}", down)
                if gpus and total < _SATURATED * self._demand(f"s{socket}", down):
                    self._set(*ends, total)
                else:
                    self._at_least(*ends, total)

    def _socket_links(self) -> None:
        """A socket's GPUs from another socket's memory, all at once."""
        count = len(self._platform.sockets)
        for near, far in ((a, b) for a in range(count) for b in range(count) if a != b):
            if self._platform.rate(f"s{far}", f"s{near}") is None:
                continue
            gpus = self._below(f"s{near}")
            for down in (True, False):
                ends = (f"s{far}", f"s{near}") if down else (f"s{near}", f"s{far}")
                memory = (f"m{far}", f"s{far}") if down else (f"s{far}", f"m{far}")
                total = self._together(gpus, f"m{far}", down)
                ceiling = min(self._demand(f"s{near}", down), self._edge_rate(*memory))
                if not gpus:
                    continue
                if total < _SATURATED * ceiling:
                    name = ">".join(ends)
                    # Both ends' GPUs may have measured it: the better of the two used it fully.
                    self._set(*ends, max(total, self._found.get(name, 0.0)))
                else:
                    self._at_least(*ends, total)

    def _between_gpus(self) -> None:
        gpus = range(self._platform.gpus)
        switched: list[int] = []
        for a in gpus:
            for b in gpus:
                way = self._routes.way(a, b) if a != b else Way.NONE
                if way is Way.NVLINK:
                    self._set(f"g{a}", f"g{b}", self._alone(Copy(f"g{a}", f"g{b}")))
                elif way is Way.NVSWITCH and a not in switched:
                    switched.append(a)
                elif way in (Way.SAME_SWITCH, Way.SAME_SOCKET, Way.ACROSS):
                    self._over_pcie(a, b)
        for at, gpu in enumerate(switched):
            self._switched(gpu, [*switched[at + 1 :], *switched[:at]])

    def _switched(self, gpu: int, others: Sequence[int]) -> None:
        """One to all and all to one: what a GPU sends to, and takes from, the NVSwitch."""
        out = [Copy(f"g{gpu}", f"g{other}") for other in others]
        back = [Copy(f"g{other}", f"g{gpu}") for other in others]
        for copies, ends in ((out, (f"g{gpu}", "N")), (back, ("N", f"g{gpu}"))):
            alone = self._alone(copies[0])
            self._set(*ends, max(alone, sum(self._copier.rates(copies))))

    def _over_pcie(self, a: int, b: int) -> None:
        """No edge of its own to learn, but a pair far below the graph is worth a line."""
        rate = self._alone(Copy(f"g{a}", f"g{b}"))
        way = self._routes.between(f"g{a}", f"g{b}")
        expected = min(self._edge_rate(edge.source, edge.target) for edge in way)
        if rate < _POOR * expected:
            self._notes.append(
                f"g{a} to g{b} over PCIe runs at {rate:.1f} GB/s where the links allow "
                f"{expected:.1f}"
            )

    def _both_ways(self, own: Mapping[Copy, float]) -> None:
        """Both directions of a GPU's host link at once; less than each alone is a joint limit."""
        for gpu in range(self._platform.gpus):
            pair = self._host_pair(gpu, self._platform.socket_of(gpu))
            down, up = self._copier.rates(pair)
            alone = own[pair[0]], own[pair[1]]
            above = self._above[f"g{gpu}"]
            names = f"{above}>g{gpu}", f"g{gpu}>{above}"
            for mine, other, got, with_it, best in (
                (*names, down, up, alone[0]),
                (*names[::-1], up, down, alone[1]),
            ):
                if 0 < got < _SATURATED * best and with_it > 0:
                    weight = round((best - got) / with_it, 4)
                    self._joint.append(Joint(((mine, 1.0), (other, weight)), round(best, 2)))
