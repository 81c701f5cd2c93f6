"""Makes the real machine's capacity graph from NVML's facts and /sys.

The structure is read. Rates are estimates by generation (rates.py). Everything that is estimated,
hidden or contradictory has a line in the platform's `assumed`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glake.errors import DriverAbsent, InvalidDevice
from glake.platform_file import MOST_GPUS
from glake.platforms import Edge, Platform, for_people
from glake.transfer.topology import nvml, rates, sockets
from glake.transfer.topology.nvml import Gpu, Nvml, NvmlFacts
from glake.transfer.topology.sysfs import Sysfs
from glake.transfer.topology.tree import Leaf, Tree
from glake.transfer.topology.visible import visible

_ONE_SWITCH = 20  # NVML's levels up to this one mean a common PCIe switch


@dataclass(frozen=True)
class Found:
    """A discovered platform, and the name and PCI address of each of its GPUs."""

    platform: Platform
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    refused: tuple[tuple[int, int], ...] = ()  # pairs that NVML says are no peers


class _Notes(list[str]):
    def add(self, text: str) -> None:
        if text not in self:
            self.append(text)


def discover(
    environ: Mapping[str, str], source: Nvml | None = None, sysfs: Sysfs | None = None
) -> Found:
    """The machine as this process's CUDA sees it. GPUs have CUDA's numbers.

    Raises InvalidDevice if there is no GPU, or if there are more than a platform can have.
    """
    sysfs = sysfs or Sysfs()
    notes = _Notes()
    facts = _facts(source, sysfs, notes)
    if facts.lost:
        notes.add(
            f"{facts.lost} GPU(s) do not answer NVML and are left out: CUDA may number others"
        )
    chosen = visible(facts.gpus, environ, notes.add)
    if not chosen:
        raise InvalidDevice(
            f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES')!r} shows none of the "
            f"{len(facts.gpus)} GPUs; unset it, or give --preset or --file"
        )
    if len(chosen) > MOST_GPUS:
        raise InvalidDevice(
            f"{len(chosen)} GPUs; a platform has at most {MOST_GPUS}: choose with "
            "CUDA_VISIBLE_DEVICES"
        )
    gpus = [facts.gpus[index] for index in chosen]
    facts = _renumbered(facts, chosen)
    platform = _Machine(facts, sysfs, notes).platform()
    names, addresses = tuple(g.name for g in gpus), tuple(g.address for g in gpus)
    return Found(platform, names, addresses, _refused(facts))


def _refused(facts: NvmlFacts) -> tuple[tuple[int, int], ...]:
    bad = {(min(pair), max(pair)) for pair, status in facts.p2p.items() if status != "ok"}
    return tuple(sorted(bad))


def _facts(source: Nvml | None, sysfs: Sysfs, notes: _Notes) -> NvmlFacts:
    try:
        facts = (source or Nvml()).read()
    except DriverAbsent as error:
        addresses = sysfs.gpus()
        if not addresses:
            raise InvalidDevice(
                f"no GPU here ({error}): give --preset NAME or --file FILE, or set GLAKE_DRIVER=sim"
            ) from error
        notes.add(f"{error}: NVLinks and peer access are not known, taken for none")
        return NvmlFacts(tuple(Gpu("GPU", address) for address in addresses))
    if not facts.gpus:
        raise InvalidDevice(
            "no GPU here (NVML lists none): give --preset NAME or --file FILE, or set "
            "GLAKE_DRIVER=sim"
        )
    return facts


def _renumbered(facts: NvmlFacts, chosen: Sequence[int]) -> NvmlFacts:
    def pairs(table: Mapping[tuple[int, int], object]) -> dict[tuple[int, int], object]:
        return {
            (a, b): table[first, second]
            for a, first in enumerate(chosen)
            for b, second in enumerate(chosen)
            if (first, second) in table
        }

    gpus = tuple(facts.gpus[index] for index in chosen)
    return NvmlFacts(gpus, pairs(facts.ancestor), pairs(facts.p2p))  # type: ignore[arg-type]


class _Machine:
    """Builds the graph: sockets, the PCIe tree below each, NVLinks."""

    def __init__(self, facts: NvmlFacts, sysfs: Sysfs, notes: _Notes) -> None:
        self._facts, self._sysfs, self._notes = facts, sysfs, notes
        self._chains = self._all_chains()

    def platform(self) -> Platform:
        found = sockets.find(self._facts, self._chains, self._sysfs, self._notes.add)
        tree_edges, generation = self._pcie(found.gpus)
        edges = [*self._host(len(found.gpus), generation), *tree_edges, *self._nvlinks()]
        self._peer_notes()
        self._notes.add("both directions of a link at once: taken not to disturb each other")
        return Platform(
            gpus=len(self._facts.gpus),
            sockets=found.gpus,
            edges=tuple(edges),
            assumed=tuple(self._notes),
            numa_nodes=found.numa_nodes,
        )

    def _all_chains(self) -> list[tuple[str, ...]]:
        """Each GPU's chain of PCI addresses. If /sys hides it, the chain is made from NVML's
        levels."""
        gpus = self._facts.gpus
        chains = [self._sysfs.chain(gpu.address) for gpu in gpus]
        if hidden := [index for index, chain in enumerate(chains) if not chain]:
            names = ", ".join(f"cuda:{index}" for index in hidden)
            self._notes.add(
                f"/sys hides the PCIe ports of {names}: shared switches taken from NVML's levels"
            )
            for index in hidden:
                first = self._first_within(index, _ONE_SWITCH)
                chains[index] = (f"hidden {index}", f"switch {first}", gpus[index].address)
        return chains

    def _first_within(self, index: int, level: int) -> int:
        near = [
            b for (a, b), found in self._facts.ancestor.items() if a == index and found <= level
        ]
        return min([index, *near])

    def _pcie(self, placed: tuple[tuple[int, ...], ...]) -> tuple[list[Edge], int]:
        """The edges under all sockets, and the best PCIe generation among the GPUs."""
        virtual = self._sysfs.is_virtual()
        if virtual:
            self._notes.add(
                "a virtual machine: its PCIe switches and their speeds may be made up; a GPU's "
                "link is taken at the GPU's own speed"
            )
        tree = Tree(self._sysfs, self._notes.add, believe_ports=not virtual)
        leaves = [
            Leaf(index, gpu, chain[1:])
            for index, (gpu, chain) in enumerate(zip(self._facts.gpus, self._chains, strict=True))
        ]
        generation = max(tree.speed(leaf)[0] for leaf in leaves)
        for socket, gpus in enumerate(placed):
            below = [leaves[index] for index in gpus]
            tree.grow(f"s{socket}", [leaf for leaf in below if self._direct(leaf) is None])
            for leaf in below:
                if (link := self._direct(leaf)) is not None:
                    rate, what = link
                    for a, b in (
                        (f"s{socket}", f"g{leaf.number}"),
                        (f"g{leaf.number}", f"s{socket}"),
                    ):
                        tree.edges.append(Edge(a, b, round(rate, 2)))
                    self._notes.add(what)
        return tree.edges, generation

    def _direct(self, leaf: Leaf) -> tuple[float, str] | None:
        """The rate of a link to the CPU that is not PCIe, and the source of that rate."""
        if leaf.gpu.c2c > 0:
            rate = leaf.gpu.c2c * rates.C2C_SHARE
            source = f"{rates.C2C_SHARE:.0%} of the {leaf.gpu.c2c:g} GB/s NVML gives"
            return rate, rates.estimate("NVLink-C2C", source)
        links = [link for link in leaf.gpu.links if link.to == nvml.CPU]
        if links:
            rate = sum(rates.nvlink(link.version, link.reported) for link in links)
            return rate, rates.nvlink_note(links[0].version)
        return None

    def _host(self, count: int, generation: int) -> list[Edge]:
        c2c = any(gpu.c2c > 0 for gpu in self._facts.gpus)
        dram = rates.C2C_DRAM if c2c else rates.dram(generation)
        self._notes.add(rates.estimate("DRAM of a socket", dram.source))
        edges = []
        for socket in range(count):
            edges.append(Edge(f"m{socket}", f"s{socket}", dram.down))
            edges.append(Edge(f"s{socket}", f"m{socket}", dram.up))
        if count > 1:
            link = rates.C2C_SOCKET_LINK if c2c else rates.socket_link(generation)
            self._notes.add(rates.estimate("link between sockets", link.source))
            pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
            edges += [Edge(f"s{a}", f"s{b}", link.down) for a, b in pairs]
        if count > 2:
            self._notes.add(f"{count} sockets: each pair taken to have a link of its own")
        return edges

    def _nvlinks(self) -> list[Edge]:
        self._unequal_links()
        rows = [self._ends(index) for index in range(len(self._facts.gpus))]
        edges = []
        for a, row in enumerate(rows):
            for b in sorted(row):
                if b == nvml.SWITCH:
                    edges += [Edge(f"g{a}", "N", row[b]), Edge("N", f"g{a}", row[b])]
                elif int(b) < len(rows) and str(a) in rows[int(b)]:
                    both = min(row[b], rows[int(b)][str(a)])
                    edges.append(Edge(f"g{a}", f"g{b}", both))
        lone = [edge for edge in edges if edge.source == "N"]
        if len(lone) == 1:
            self._notes.add(f"{for_people(lone[0].target)} alone is seen on the NVSwitch")
        return edges

    def _ends(self, index: int) -> dict[str, float]:
        """GB/s from a GPU over NVLink, by the other end: SWITCH, or a GPU's number."""
        gpu = self._facts.gpus[index]
        if gpu.mig:
            self._notes.add(
                f"cuda:{index} is divided by MIG: its NVLinks serve no instance and are left out; "
                "CUDA shows a process one instance"
            )
            return {}
        numbers = {each.address: str(at) for at, each in enumerate(self._facts.gpus)}
        ends: dict[str, float] = {}
        for link in gpu.links:
            to = self._end(index, link, numbers)
            if to is None:
                continue
            reported = link.reported
            if reported is not None and not rates.plausible(link.version, reported):
                self._notes.add(f"cuda:{index}: {reported:g} GB/s a link is not NVLink's: ignored")
                reported = None
            self._notes.add(rates.nvlink_note(link.version))
            ends[to] = ends.get(to, 0.0) + rates.nvlink(link.version, reported)
        if nvml.SWITCH in ends and self._switch_is_down(index):
            self._notes.add(
                f"cuda:{index}: NVML allows no peer access over the NVSwitch (is the fabric "
                "manager running?): its links are left out"
            )
            del ends[nvml.SWITCH]
        return {to: round(rate, 2) for to, rate in ends.items()}

    def _end(self, index: int, link: nvml.NvLink, numbers: dict[str, str]) -> str | None:
        if link.to == nvml.CPU:
            return None
        if link.to == nvml.SWITCH or link.to in numbers:
            return numbers.get(link.to, nvml.SWITCH)
        if link.to == nvml.UNKNOWN:
            self._notes.add(f"cuda:{index}: NVML does not say where its NVLinks go: to an NVSwitch")
            return nvml.SWITCH
        if self._sysfs.is_nvswitch(link.to):
            return nvml.SWITCH
        self._notes.add(f"cuda:{index}: NVLinks to {link.to}, no GPU of this process, left out")
        return None

    def _switch_is_down(self, index: int) -> bool:
        told = [status for (a, _), status in self._facts.p2p.items() if a == index]
        return bool(told) and all(status != "ok" for status in told)

    def _unequal_links(self) -> None:
        counts = [len(gpu.links) for gpu in self._facts.gpus]
        kinds = [gpu.name for gpu in self._facts.gpus]
        for index, count in enumerate(counts):
            most = max(c for c, kind in zip(counts, kinds, strict=True) if kind == kinds[index])
            if count < most:
                self._notes.add(f"cuda:{index}: {count} NVLinks are up where others have {most}")

    def _peer_notes(self) -> None:
        refused: dict[str, list[str]] = {}
        for (a, b), status in sorted(self._facts.p2p.items()):
            if a < b and status != "ok":
                refused.setdefault(status, []).append(f"cuda:{a}-cuda:{b}")
        for status, pairs in refused.items():
            shown = ", ".join(pairs[:6]) + (", ..." if len(pairs) > 6 else "")
            self._notes.add(
                f"no peer access between {shown} ({status}): the driver stages such copies in "
                "host memory"
            )
