"""A short probe that replaces a topology's estimated rates by measured ones.

It uses a `Copier`, so that the same steps run on a model, on the simulator and on GPUs. It was not
seen on hardware yet. If the topology as known so far explains the rates of copies, it stays.
Otherwise the limit of the narrowest link that all of these copies cross changes. Links that a few
copies cannot tell apart stay as they were, with a note. If a link is faster than all GPUs behind it
together, its rate cannot be measured. It has only a lower bound.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import combinations

from glake.platforms import Joint, Platform, for_people
from glake.transfer.topology import calibration_cache
from glake.transfer.topology.calibration import Calibration
from glake.transfer.topology.contention import SATURATED, BothWays, Contention
from glake.transfer.topology.copier import Copier, Copy, DriverCopier
from glake.transfer.topology.routes import Routes, Way, parents
from glake.transfer.topology.sources import current
from glake.transfer.topology.topology import Topology

_POOR = 0.7  # a pair of GPUs below this share of the graph's rate is noted


def probe(platform: Platform, copier: Copier) -> Calibration:
    """Measures one copy at a time, and then shared links, level by level. It takes seconds on a
    machine."""
    return _Probe(platform, copier).run()


def measure(topology: Topology | None = None) -> Topology:
    """Measures the machine's links with plain copies. Later engines and processes plan with the
    result.

    This takes a second or two, in which the GPUs should do nothing else. The results are kept by a
    hash of the topology (calibration_cache.py). Those of a simulated machine are kept only as long
    as the process lives. After an error nothing is kept, and the topology is as before.

    Args:
        topology: the machine's topology, as discovered; None: current(calibrated=False).

    Raises OutOfMemory if there is no room for buffers, InvalidArgument if an engine is open,
    BusyTimeout or DriverError.
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
        self._shared: dict[tuple[str, str], float] = {}  # GB/s over a shared link, by its ends
        self._together: set[frozenset[str]] = set()  # edges with unexpected rates at once
        self._both: list[BothWays] = []

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
        self._explained_by_others()
        return self._calibration()

    def _calibration(self) -> Calibration:
        rates = {name: round(rate, 2) for name, rate in self._found.items()}
        together = frozenset(self._together)
        return Calibration(rates, tuple(self._joint), tuple(self._notes), together)

    def _believed(self, without: Collection[str] = ()) -> Contention:
        """How copies share the links, as far as is known."""
        return Contention(self._calibration().on(self._platform), self._routes, without)

    def _host_pair(self, gpu: int, socket: int) -> tuple[Copy, Copy]:
        return Copy(f"m{socket}", f"g{gpu}"), Copy(f"g{gpu}", f"m{socket}")

    def _alone(self, copy: Copy) -> float:
        return self._copier.rates([copy])[0]

    def _set(self, source: str, target: str, rate: float) -> None:
        if rate > 0 and self._platform.rate(source, target) is not None:
            self._found[f"{source}>{target}"] = rate

    def _at_least(self, source: str, target: str, rate: float) -> None:
        """Notes that the edge carried this much without being full. Its estimate stays unless it is
        lower."""
        exists = self._platform.rate(source, target) is not None
        if exists and self._edge_rate(source, target) < rate:
            self._found[f"{source}>{target}"] = rate

    def _limits(
        self,
        ends: tuple[str, str],
        copies: Sequence[Copy],
        rates: Sequence[float],
        beyond: Collection[str] = (),
    ) -> bool:
        """Whether the edge limited the copies to these rates. `beyond` are edges on their way that
        are not measured yet. One of these counts as the limit only if it would be as slow as is
        believed.
        """
        name = ">".join(ends)
        as_believed = self._believed().explains(copies, rates)
        without = {name} if as_believed else {name, *beyond}
        return 0 < sum(rates) < SATURATED * self._believed(without).total(copies)

    def _own_links(self, own: Mapping[Copy, float]) -> None:
        every = [edge.name for edge in self._platform.edges]
        for copy, rate in own.items():
            down = copy.target[0] == "g"
            gpu = copy.target if down else copy.source
            above = self._above[gpu]
            ends = (above, gpu) if down else (gpu, above)
            if self._limits(ends, [copy], [rate], every):
                self._set(*ends, rate)
            else:
                self._at_least(*ends, rate)

    def _below(self, node: str) -> list[str]:
        """The GPUs below `node`, which is a switch or root."""
        found = []
        for gpu in (f"g{index}" for index in range(self._platform.gpus)):
            above = gpu
            while above in self._above:
                above = self._above[above]
                if above == node:
                    found.append(gpu)
        return found

    def _copies(self, gpus: Sequence[str], memory: str, down: bool) -> list[Copy]:
        return [Copy(memory, gpu) if down else Copy(gpu, memory) for gpu in gpus]

    def _total(self, gpus: Sequence[str], memory: str, down: bool) -> float:
        """The summed GB/s of all copies at once. 0: it cannot be measured."""
        copies = self._copies(gpus, memory, down)
        return sum(self._copier.rates(copies)) if copies else 0.0

    def _switches(self) -> None:
        """Copies to all GPUs below a switch at once. Their summed rate is that of the switch's
        uplink."""
        innermost_first = [node for node in reversed(self._above) if node[0] == "u"]
        for switch in innermost_first:
            root = self._above[switch]
            gpus = self._below(switch)
            if not gpus:
                continue
            memory = f"m{self._platform.socket_of(int(gpus[0][1:]))}"
            inside = self._inside(switch)
            beyond = [edge.name for edge in self._platform.edges if edge.name not in inside]
            for down in (True, False):
                ends = (root, switch) if down else (switch, root)
                copies = self._copies(gpus, memory, down)
                rates = self._copier.rates(copies)
                self._shared[ends] = sum(rates)
                if self._limits(ends, copies, rates, beyond):
                    self._set(*ends, sum(rates))
                    self._hidden(switch, sum(rates), down)
                else:
                    self._at_least(*ends, sum(rates))

    def _inside(self, node: str) -> set[str]:
        """The PCIe edges below a switch or root, in both directions."""
        found: set[str] = set()
        for child in (child for child, above in self._above.items() if above == node):
            found |= {f"{node}>{child}", f"{child}>{node}", *self._inside(child)}
        return found

    def _hidden(self, node: str, total: float, down: bool) -> None:
        """Notes that a link below the node is at least as fast as the node's link, because it fills
        that link alone. No more is known of it."""
        for name in self._inside(node) & self._found.keys():
            source, target = name.split(">")
            if (self._above.get(target) == source) == down:
                rate = self._found[name]
                if rate >= SATURATED * total:
                    del self._found[name]
                    self._at_least(source, target, rate)

    def _demand(self, node: str, down: bool) -> float:
        """The most that the nodes below a switch or root can take together, from the rates measured
        below it."""
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
            root, memory = f"s{socket}", f"m{socket}"
            gpus = self._below(root)
            if not gpus:
                continue
            for down in (True, False):
                ends = (memory, root) if down else (root, memory)
                copies = self._copies(gpus, memory, down)
                rates = self._copier.rates(copies)
                total = self._shared[ends] = sum(rates)
                limited = self._limits(ends, copies, rates)
                if limited and not self._hidden_uplinks(socket, total, down):
                    self._set(*ends, total)
                    self._hidden(root, total, down)
                else:
                    self._at_least(*ends, total)

    def _hidden_uplinks(self, socket: int, total: float, down: bool) -> bool:
        """Finds whether links of the socket that look separate share an uplink. A virtual machine
        may hide switches, so the graph does not show it. If links share one, finds limits over
        them. `total` is the rate of all at once.
        """
        root, memory = f"s{socket}", f"m{socket}"
        alone = {
            link: min(self._rate_of(root, link, down), self._demand(link, down) or 1e9)
            for link in (child for child, above in self._above.items() if above == root)
        }
        near: dict[str, set[str]] = {link: {link} for link in alone}
        for a, b in combinations(alone, 2) if len(alone) > 2 else ():
            both = self._total([*self._gpus_at(a), *self._gpus_at(b)], memory, down)
            if 0 < both < SATURATED * min(alone[a] + alone[b], total):
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
            self._notes.append(
                f"{for_people(', '.join(names))} share an uplink that nothing else shows"
            )
        return bool(groups) and total >= SATURATED * carried

    def _gpus_at(self, link: str) -> list[str]:
        return [link] if link[0] == "g" else self._below(link)

    def _rate_of(self, above: str, below: str, down: bool) -> float:
        return self._edge_rate(above, below) if down else self._edge_rate(below, above)

    def _socket_links(self, again: bool = True) -> None:
        """Copies to a socket's GPUs from another socket's memory, all at once."""
        count = len(self._platform.sockets)
        wrong = False
        for near, far in ((a, b) for a in range(count) for b in range(count) if a != b):
            if self._platform.rate(f"s{far}", f"s{near}") is None:
                continue
            gpus = self._below(f"s{near}")
            for down in (True, False) if gpus else ():
                ends = (f"s{far}", f"s{near}") if down else (f"s{near}", f"s{far}")
                copies = self._copies(gpus, f"m{far}", down)
                rates = self._copier.rates(copies)
                total = sum(rates)
                wrong |= self._carry_more(copies, rates)
                if self._limits(ends, copies, rates):
                    name = ">".join(ends)
                    # It may have been measured twice, by the GPUs of either end. The higher rate
                    # used it fully.
                    self._set(*ends, max(total, self._found.get(name, 0.0)))
                else:
                    self._at_least(*ends, total)
        # What limited links was really a memory. The rates of these links may be wrong for the same
        # reason, so they are measured once more.
        if wrong and again:
            self._found = {n: r for n, r in self._found.items() if n.count("s") < 2}
            self._memories()
            self._socket_links(again=False)

    def _carry_more(self, copies: Sequence[Copy], rates: Sequence[float]) -> bool:
        """Finds whether links carry more than was measured, because the slow part was beyond
        them."""
        raised = False
        for name in list(self._found):
            load = sum(r for c, r in zip(copies, rates, strict=True) if name in self._names(c))
            if SATURATED * load > self._found[name]:
                self._found[name], raised = load, True
        return raised

    def _names(self, copy: Copy) -> set[str]:
        return {edge.name for edge in self._routes.between(copy.source, copy.target)}

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
        """Copies from one GPU to all others, and from all to one. This gives the rates of its links
        to and from the NVSwitch."""
        out = [Copy(f"g{gpu}", f"g{other}") for other in others]
        back = [Copy(f"g{other}", f"g{gpu}") for other in others]
        for copies, ends in ((out, (f"g{gpu}", "N")), (back, ("N", f"g{gpu}"))):
            alone = self._alone(copies[0])
            self._set(*ends, max(alone, sum(self._copier.rates(copies))))

    def _over_pcie(self, a: int, b: int) -> None:
        """Learns no edge, but notes pairs of GPUs whose rate is far below the graph's."""
        rate = self._alone(Copy(f"g{a}", f"g{b}"))
        way = self._routes.between(f"g{a}", f"g{b}")
        expected = min(self._edge_rate(edge.source, edge.target) for edge in way)
        if rate < _POOR * expected:
            self._notes.append(
                f"cuda:{a} to cuda:{b} over PCIe runs at {rate:.1f} GB/s where the links allow "
                f"{expected:.1f}"
            )

    def _both_ways(self, own: Mapping[Copy, float]) -> None:
        """Copies in both directions of a GPU's host link at once. If each gets less than alone,
        there is a joint limit."""
        for gpu in range(self._platform.gpus):
            pair = self._host_pair(gpu, self._platform.socket_of(gpu))
            above = self._above[f"g{gpu}"]
            names = f"{above}>g{gpu}", f"g{gpu}>{above}"
            self._at_once(names, pair, (own[pair[0]], own[pair[1]]))

    def _both_ways_shared(self) -> None:
        """Does the same for links that several GPUs share: those of switches and of a socket's
        memory."""
        for node in [*(n for n in reversed(self._above) if n[0] == "u"), *self._roots()]:
            gpus = self._below(node)
            if len(gpus) < 2:
                continue
            socket = self._platform.socket_of(int(gpus[0][1:]))
            above = self._above.get(node, f"m{socket}")
            alone = self._carried(above, node), self._carried(node, above)
            copies = [copy for gpu in gpus for copy in self._host_pair(int(gpu[1:]), socket)]
            self._at_once((f"{above}>{node}", f"{node}>{above}"), copies, alone)

    def _carried(self, source: str, target: str) -> float:
        return self._shared.get((source, target), 0.0)

    def _roots(self) -> list[str]:
        return [f"s{socket}" for socket in range(len(self._platform.sockets))]

    def _at_once(
        self, names: tuple[str, str], copies: Sequence[Copy], alone: tuple[float, float]
    ) -> None:
        """Runs copies down and up in turns. Adds a limit over both edges if nothing known explains
        them."""
        rates = self._copier.rates(copies)
        if 0 in alone or 0 in rates:
            return
        seen = BothWays(frozenset(names), copies, rates)
        self._both.append(seen)
        if self._believed().explains(seen.copies, seen.rates):
            return
        self._together.add(seen.names)  # earlier limits over both edges do not hold
        if sum(rates) < SATURATED * self._believed().total(copies):
            self._limit_both(names, alone, (sum(rates[::2]), sum(rates[1::2])))

    def _limit_both(
        self, names: tuple[str, str], alone: tuple[float, float], got: tuple[float, float]
    ) -> None:
        """Adds joint limits: lines from the rate that each direction reaches alone to the rates of
        both at once.

        If the GPUs cannot fill an edge, its own rate is not known. It is then assumed to be the
        believed rate, or less, so that a straight line goes from it through the rates of both.
        """
        can = [max(self._edge_rate(*n.split(">")), a) for n, a in zip(names, alone, strict=True)]
        share = got[0] / can[0] + got[1] / can[1]
        if share < 1:
            can = [max(a, share * c) for a, c in zip(alone, can, strict=True)]
        for way in (0, 1):
            best, mine, other = can[way], got[way], got[1 - way]
            if mine < SATURATED * alone[way]:
                # It is never below what the other direction can reach alone.
                weight = round(min((best - mine) / other, best / can[1 - way]), 4)
                terms = ((names[way], 1.0), (names[1 - way], weight))
                self._joint.append(Joint(terms, round(best, 2)))

    def _explained_by_others(self) -> None:
        """Drops limits of inner links if a limit further out, which was found later, explains the
        rates too."""
        for seen in self._both:
            before = list(self._joint), set(self._together)
            if seen.names not in self._together:
                continue
            self._joint = [j for j in self._joint if set(dict(j.weights)) != seen.names]
            self._together.discard(seen.names)
            if self._believed().explains(seen.copies, seen.rates):
                continue
            self._together.add(seen.names)
            if not self._believed().explains(seen.copies, seen.rates):
                self._joint, self._together = before
