"""Made-up machines by number: 2 to 16 GPUs on 1 to 4 sockets, with every kind of fabric.

A number always gives the same machine. They show what the engine does on machines for which nobody
has tuned it.
"""

from __future__ import annotations

import random
from itertools import combinations

from glake.platforms import Edge, Joint, Platform

_GPUS = (2, 3, 4, 4, 6, 8, 8, 8, 10, 12, 16)
_PCIE = (12.5, 25.0, 25.0, 55.0, 55.0)  # GB/s of a GPU's own link: PCIe 3, 4 and 5
_COHERENT = (180.0, 400.0)  # GB/s, if NVLink joins GPU and CPU
_KINDS = ("pcie", "bridges", "ring", "mesh", "switch", "switch", "coherent")


def machines(count: int, first: int = 0) -> dict[str, Platform]:
    """Machines `first` to `first + count - 1`, by name."""
    return {f"made-{number}": machine(number) for number in range(first, first + count)}


def machine(number: int) -> Platform:
    """The machine with that number."""
    return _Maker(number).platform()


class _Maker:
    def __init__(self, number: int) -> None:
        self._dice = dice = random.Random(f"glake machine {number}")
        self._kind = dice.choice(_KINDS)
        self._gpus = dice.choice(_GPUS if self._kind != "coherent" else (2, 4, 4, 8))
        sockets = dice.choice([s for s in (1, 2, 2, 4) if s <= self._gpus])
        # Sockets may have different numbers of GPUs, but each has at least one.
        cuts = [round(self._gpus * i / sockets) for i in range(sockets + 1)]
        if self._gpus > sockets > 1 and dice.random() < 0.25:
            cuts[1] = max(1, cuts[1] - 1)
        self._sockets = [tuple(range(a, b)) for a, b in zip(cuts, cuts[1:], strict=False)]
        self._unlike = dice.random() < 0.4
        self._edges: list[Edge] = []
        self._joint: list[Joint] = []

    def platform(self) -> Platform:
        own = self._dice.choice(_COHERENT if self._kind == "coherent" else _PCIE)
        self._memory(own)
        self._host_links(own)
        self._fabric(own)
        return Platform(
            gpus=self._gpus,
            sockets=tuple(self._sockets),
            edges=tuple(self._edges),
            joint=tuple(self._joint),
            copy_us=self._dice.choice((6.0, 8.0, 8.0, 12.0)),
        )

    def _rate(self, rate: float) -> float:
        """A link's rate. On most machines equal links have equal rates, and on others these are
        within a factor of two."""
        return round(rate * (self._dice.uniform(0.5, 1.0) if self._unlike else 1.0), 2)

    def _both(self, a: str, b: str, rate: float) -> None:
        there = self._rate(rate)
        back = there if self._dice.random() < 0.7 else round(0.9 * there, 2)
        self._edges += [Edge(a, b, there), Edge(b, a, back)]

    def _memory(self, own: float) -> None:
        """The rate of a socket's memory. It is enough for one to four of its GPUs."""
        dice = self._dice
        dram = own * dice.uniform(1.5, 4.5)
        both_ways = dice.random() < 0.5
        for socket in range(len(self._sockets)):
            there, back = f"m{socket}>s{socket}", f"s{socket}>m{socket}"
            self._both(f"m{socket}", f"s{socket}", dram)
            if both_ways:
                least = min(edge.gb_per_s for edge in self._edges if edge.name in (there, back))
                self._joint.append(Joint(((there, 1.0), (back, 1.0)), round(1.3 * least, 2)))
        across = own * dice.uniform(0.6, 2.5)
        for a, b in combinations(range(len(self._sockets)), 2):
            self._both(f"s{a}", f"s{b}", across)

    def _host_links(self, own: float) -> None:
        """GPUs' links to the socket. They go there directly, or through a switch whose uplink is as
        fast as the links of one GPU or of two."""
        dice = self._dice
        group = 1 if self._kind == "coherent" else dice.choice((1, 1, 2, 2, 4))
        up = own * dice.choice((1.0, 1.0, 2.0))
        switches = 0
        for socket, gpus in enumerate(self._sockets):
            for start in range(0, len(gpus), group):
                above = f"s{socket}"
                if group > 1:
                    above = f"u{switches}"
                    switches += 1
                    self._both(f"s{socket}", above, up)
                for gpu in gpus[start : start + group]:
                    self._both(above, f"g{gpu}", own)

    def _fabric(self, own: float) -> None:
        dice, gpus = self._dice, range(self._gpus)
        link = own * dice.uniform(1.2, 4.0)
        if self._kind == "bridges":
            for gpu in range(0, self._gpus - 1, 2):
                self._both(f"g{gpu}", f"g{gpu + 1}", link)
        elif self._kind == "ring" and self._gpus > 2:
            for gpu in gpus:
                self._both(f"g{gpu}", f"g{(gpu + 1) % self._gpus}", link)
        elif self._kind in ("mesh", "ring"):
            for a, b in combinations(gpus, 2):
                if dice.random() < min(1.0, 4 / self._gpus):
                    self._both(f"g{a}", f"g{b}", link * dice.choice((1, 1, 2)))
        elif self._kind in ("switch", "coherent"):
            for gpu in gpus:
                rate = own * dice.uniform(2.0, 8.0) if self._unlike else 2 * link
                self._both(f"g{gpu}", "N", rate)
