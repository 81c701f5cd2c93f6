"""A short probe that replaces a topology's estimated rates by measured ones.

Written against a `Copier`, so that the same steps run on a model, on the simulator and on GPUs. Not
yet seen on hardware. What a few copies cannot separate stays as it was, and is noted: a link faster
than all that the GPUs behind it can ask for has no measurable rate, only a lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import combinations

from glake.platforms import Joint, Platform
from glake.transfer.topology import calibration_cache
from glake.transfer.topology.calibration import Calibration
from glake.transfer.topology.copier import Copier, Copy, DriverCopier
from glake.transfer.topology.routes import Routes, Way, parents
from glake.transfer.topology.sources import Topology, current

_SATURATED = 0.95  # a total below this share of its parts: something they share was full
_POOR = 0.7  # a pair below this share of what the graph says is told


def probe(platform: Platform, copier: Copier) -> Calibration:
    """Measures one copy at a time, then what is shared, level by level. Seconds on a machine."""
    return _Probe(platform, copier).run()


def measure(topology: Topology | None = None) -> Topology:
    """Measures the machine's links with plain copies; later engines and processes plan by that.

    Takes a second or two of the GPUs' time, which should have nothing else to do. Kept by a hash of
    the topology (calibration_cache.py); a simulated machine's only as long as the process. If it
    raises, nothing is kept and the topology is as it was.

    Args:
        topology: the machine's, as discovered; None: current(calibrated=False).

    OutOfMemory: no room for buffers. InvalidArgument: an engine is open. BusyTimeout, DriverError.
    """
    if topology is None:
        topology = current(calibrated=False)
    with DriverCopier(topology) as copier:
        found = probe(topology.platform, copier)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    found = replace(found, notes=(*found.notes, *copier.notes), date=now)
    calibration_cache.store(topology, found)
    return found.applied(topology)


class _Probe:
    def __init__(self, platform: Platform, copier: Copier) -> None:
        self._platform, self._copier = platform, copier
        self._routes = Routes(platform)
        self._above = parents(platform)
        self._found: dict[str, float] = {}
        self._joint: list[Joint] = []
        self._notes: list[str] = []
        self._shared: dict[tuple[str, str], float] = {}  # what went over them, by their ends
        self._pairs: dict[str, tuple[float, float]] = {}  # both ways at once, by GPU
        self._together: set[str] = set()  # edges measured with others

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
        self._both_ways_shared()
        rates = {name: round(rate, 2) for name, rate in self._found.items()}
        together = frozenset(self._together)
        return Calibration(rates, tuple(self._joint), tuple(self._notes), together)

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

    def _total(self, gpus: Sequence[str], memory: str, down: bool) -> float:
        """GB/s of all of them at once; 0 if that cannot be measured."""
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
                total = self._total(gpus, memory, down)
                self._shared[ends] = total
                if 0 < total < _SATURATED * self._demand(switch, down):
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
                self._found.pop(">".join(ends), None)
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
                total = self._total(gpus, f"m{socket}", down)
                self._shared[ends] = total
                limited = 0 < total < _SATURATED * self._demand(f"s{socket}", down)
                if limited and not self._hidden_uplinks(socket, total, down):
                    self._set(*ends, total)
                else:
                    self._at_least(*ends, total)

    def _hidden_uplinks(self, socket: int, total: float, down: bool) -> bool:
        """Whether links of the socket's that look apart share an uplink the graph does not show (a
        virtual machine hides switches); then limits over them are found. `total`: of all at once.
        """
        root, memory = f"s{socket}", f"m{socket}"
        alone = {
            link: min(self._rate_of(root, link, down), self._demand(link, down) or 1e9)
            for link in (child for child, above in self._above.items() if above == root)
        }
        near: dict[str, set[str]] = {link: {link} for link in alone}
        for a, b in combinations(alone, 2) if len(alone) > 2 else ():
            both = self._total([*self._gpus_at(a), *self._gpus_at(b)], memory, down)
            if 0 < both < _SATURATED * min(alone[a] + alone[b], total):
                joined = near[a] | near[b]
                near.update(dict.fromkeys(joined, joined))
        groups = {tuple(sorted(group)) for group in near.values() if len(group) > 1}
        carried = sum(alone[link] for link in alone if len(near[link]) == 1)
        for group in sorted(groups):
            gpus = [gpu for link in group for gpu in self._gpus_at(link)]
            limit = self._total(gpus, memory, down)
            carried += limit
            names = [f"{root}>{link}" if down else f"{link}>{root}" for link in group]
            self._joint.append(Joint(tuple((name, 1.0) for name in names), round(limit, 2)))
            self._notes.append(f"{', '.join(names)} share an uplink that nothing else shows")
        return bool(groups) and total >= _SATURATED * carried

    def _gpus_at(self, link: str) -> list[str]:
        return [link] if link[0] == "g" else self._below(link)

    def _rate_of(self, above: str, below: str, down: bool) -> float:
        return self._edge_rate(above, below) if down else self._edge_rate(below, above)

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
                total = self._total(gpus, f"m{far}", down)
                ceiling = min(self._demand(f"s{near}", down), self._edge_rate(*memory))
                if total <= 0:
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
            self._pairs[f"g{gpu}"] = down, up
            above = self._above[f"g{gpu}"]
            names = f"{above}>g{gpu}", f"g{gpu}>{above}"
            self._limit_both(names, (own[pair[0]], own[pair[1]]), (down, up))

    def _both_ways_shared(self) -> None:
        """The same of what several GPUs share: switches, and the memory of a socket."""
        for node in [*(n for n in reversed(self._above) if n[0] == "u"), *self._roots()]:
            gpus = self._below(node)
            socket = self._platform.socket_of(int(gpus[0][1:])) if gpus else 0
            above = self._above.get(node, f"m{socket}")
            alone = self._carried(above, node), self._carried(node, above)
            if len(gpus) < 2 or 0 in alone:
                continue
            copies = [copy for gpu in gpus for copy in self._host_pair(int(gpu[1:]), socket)]
            rates = self._copier.rates(copies)
            got = sum(rates[::2]), sum(rates[1::2])
            parts = [sum(self._pairs[gpu][way] for gpu in gpus) for way in (0, 1)]
            expected = sum(min(pair) for pair in zip(alone, parts, strict=True))
            names = f"{above}>{node}", f"{node}>{above}"
            if sum(got) < _SATURATED * expected:
                self._limit_both(names, alone, got)
            else:
                self._together.update(names)

    def _carried(self, source: str, target: str) -> float:
        return self._shared.get((source, target), 0.0)

    def _roots(self) -> list[str]:
        return [f"s{socket}" for socket in range(len(self._platform.sockets))]

    def _limit_both(
        self, names: tuple[str, str], alone: tuple[float, float], got: tuple[float, float]
    ) -> None:
        """The lines from what each direction reaches alone to what both reach at once."""
        if min(got) <= 0:
            return
        self._together.update(names)
        for way in (0, 1):
            best, mine, other = alone[way], got[way], got[1 - way]
            if mine < _SATURATED * best:
                weight = round((best - mine) / other, 4)
                terms = ((names[way], 1.0), (names[1 - way], weight))
                self._joint.append(Joint(terms, round(best, 2)))
