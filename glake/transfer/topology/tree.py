"""Builds the PCIe trees below the sockets: turns each GPU's chain of ports into switches and links
with rates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glake.platforms import Edge
from glake.transfer.topology import rates
from glake.transfer.topology.nvml import Gpu
from glake.transfer.topology.rates import estimate
from glake.transfer.topology.sysfs import Sysfs


@dataclass(frozen=True)
class Leaf:
    """A GPU of the graph and the PCI addresses of its chain, the root port first and itself
    last."""

    number: int
    gpu: Gpu
    chain: tuple[str, ...]


class Tree:
    """Builds the edges below one socket after another. Switches get their numbers as they are
    found.

    The link of a switch with one GPU below it is not shared. It becomes part of that GPU's own
    link.
    """

    def __init__(self, sysfs: Sysfs, note: Callable[[str], None], believe_ports: bool) -> None:
        self._sysfs, self._note, self._believe_ports = sysfs, note, believe_ports
        self._switches = 0
        self.edges: list[Edge] = []

    def grow(self, parent: str, leaves: Sequence[Leaf], depth: int = 0) -> None:
        """Puts `leaves`, whose chains agree above `depth`, under node `parent`."""
        groups: dict[str, list[Leaf]] = {}
        for leaf in leaves:
            groups.setdefault(leaf.chain[depth], []).append(leaf)
        for group in groups.values():
            if len(group) == 1:
                self._hang(parent, group[0], depth)
                continue
            end = depth + 1
            while len({leaf.chain[end] for leaf in group}) == 1:
                end += 1
            self._redirects(group, end)
            switch = f"u{self._switches}"
            self._switches += 1
            most = max((self.speed(leaf)[0] for leaf in group), default=0)
            lanes = max(self.speed(leaf)[1] for leaf in group)
            segment = group[0].chain[depth:end]
            self._join(parent, switch, *self._narrowest(segment, most, lanes), shared=True)
            self.grow(switch, group, end)

    def speed(self, leaf: Leaf) -> tuple[int, int]:
        """The generation and lanes of a GPU's own end of its link."""
        port = self._sysfs.port(leaf.gpu.address)
        generation = leaf.gpu.generation or port.generation
        lanes = leaf.gpu.lanes or port.lanes_now or port.lanes
        return generation or 4, lanes or 16

    def _hang(self, parent: str, leaf: Leaf, depth: int) -> None:
        gpu = leaf.gpu
        port = self._sysfs.port(gpu.address)
        if (gpu.generation or port.generation) is None:
            self._note(f"cuda:{leaf.number}: PCIe generation not told: taken for 4")
        if (gpu.lanes or port.lanes_now or port.lanes) is None:
            self._note(f"cuda:{leaf.number}: PCIe lanes not told: taken for 16")
        most = gpu.most_lanes or port.lanes
        generation, lanes = self.speed(leaf)
        if most is not None and lanes < most:
            self._note(f"cuda:{leaf.number}: its PCIe link runs on {lanes} of {most} lanes")
        generation, lanes = self._narrowest(leaf.chain[depth:-1], generation, lanes)
        self._join(parent, f"g{leaf.number}", generation, lanes)

    def _narrowest(self, segment: Sequence[str], generation: int, lanes: int) -> tuple[int, int]:
        """The slowest link of a stretch without branches. Idle links clock down, so each port
        counts with its highest generation, but with its present lanes."""
        found = (generation, lanes)
        for address in segment if self._believe_ports else ():
            port = self._sysfs.port(address)
            speed = min(port.generation or found[0], found[0])
            width = min(port.lanes_now or port.lanes or found[1], found[1])
            found = (speed, width)
        return found

    def _join(
        self, parent: str, child: str, generation: int, lanes: int, shared: bool = False
    ) -> None:
        rate = rates.pcie(generation, lanes, shared)
        self.edges.append(Edge(parent, child, round(rate.down, 2)))
        self.edges.append(Edge(child, parent, round(rate.up, 2)))
        what = "shared by several GPUs" if shared else "link"
        self._note(estimate(f"PCIe generation {generation} x{lanes} {what}", rate.source))

    def _redirects(self, group: Sequence[Leaf], end: int) -> None:
        """Whether ACS on the ports below a switch sends copies between its GPUs up to the host
        first."""
        ports = sorted({leaf.chain[end] for leaf in group if end < len(leaf.chain) - 1})
        told = [self._sysfs.redirects(port) for port in ports]
        if any(told):
            names = ", ".join(port for port, on in zip(ports, told, strict=True) if on)
            self._note(
                f"ACS redirection is on at {names}: copies between GPUs under that switch cross "
                "the host, at about half speed, unlike the graph"
            )
        elif None in told:
            self._note(
                "ACS not readable without root: copies under one switch taken not to cross the host"
            )
