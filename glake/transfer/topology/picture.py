"""Draws a platform by matplotlib, for machines without Graphviz.

Sockets stand side by side. Host memory is below them, switches and GPUs are above, and NVLink is on
top.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glake.platforms import Edge, Platform
from glake.transfer import pictures
from glake.transfer.topology.look import DRAM, FILL, NVLINK, PCIE, SOCKET, label, line_width
from glake.transfer.topology.routes import parents
from glake.transfer.topology.topology import Topology

_STEP = 1.7  # from one GPU to the next, in the unit of all lengths here
_ARC = 0.62  # height of an NVLink's arc for each GPU it spans
_GPU_WIDTH, _HEIGHT = 0.9, 0.42
Spots = dict[str, tuple[float, float]]


def draw(topology: Topology, file: Path) -> None:
    """Writes the picture by `pictures.page`. Raises what that raises."""
    sheet = _Sheet(topology.platform)
    with pictures.page(file, sheet.inches(), dpi=150) as figure:
        axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
        sheet.paint(axes, f"{_cut(topology.name)}  ({_cut(topology.source)})")


def _cut(text: str) -> str:
    """Cuts a text to fit the title's line, and removes `$`, which would start a formula. The end of
    a path says most, so it is kept."""
    shown = text if len(text) <= 36 else f"...{text[-33:]}"
    return shown.replace("$", r"\$")


class _Sheet:
    """The places of the nodes, and how edges and labels are drawn."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._children: dict[str, list[str]] = {}
        for child, above in parents(platform).items():
            self._children.setdefault(above, []).append(child)
        self._levels = max((self._depth(f"s{s}") for s in range(len(platform.sockets))), default=1)
        self._spots = self._places()
        self._top = self._gpu_y() + self._above()
        self._right = max(x for x, _ in self._spots.values()) + _STEP * 0.75

    def inches(self) -> tuple[float, float]:
        return (max(6.5, 0.95 * (self._right + 1.2)), 0.95 * (self._top + 2.3))

    def _gpu_y(self) -> float:
        return 1.6 + 1.6 * self._levels

    def _depth(self, node: str) -> int:
        return max(
            (1 + self._depth(c) for c in self._children.get(node, []) if c[0] == "u"), default=1
        )

    def _arcs(self) -> list[tuple[int, int]]:
        pairs = {
            (int(e.source[1:]), int(e.target[1:]))
            for e in self._platform.edges
            if e.source[0] == e.target[0] == "g"
        }
        return sorted({(min(pair), max(pair)) for pair in pairs})

    def _above(self) -> float:
        """The room over the GPUs for arcs and the NVSwitch."""
        spans = [abs(self._spots[f"g{a}"][0] - self._spots[f"g{b}"][0]) for a, b in self._arcs()]
        room = max((_ARC * span / _STEP + 0.6 for span in spans), default=0.4)
        return room + (1.4 if self._has_switch() else 0.2)

    def _has_switch(self) -> bool:
        return any("N" in (edge.source, edge.target) for edge in self._platform.edges)

    def _leaves(self, node: str) -> list[str]:
        if node[0] == "g":
            return [node]
        return [leaf for child in self._children.get(node, []) for leaf in self._leaves(child)]

    def _places(self) -> Spots:
        spots: Spots = {}
        x = 0.0
        for socket in range(len(self._platform.sockets)):
            root = f"s{socket}"
            leaves = list(dict.fromkeys(self._leaves(root)))
            for leaf in leaves:
                spots[leaf] = (x, self._gpu_y())
                x += _STEP
            if not leaves:
                spots[root] = (x, 1.6)
                x += _STEP
            self._centre(root, 1.6, spots)
            spots[f"m{socket}"] = (spots[root][0], 0.0)
            x += _STEP * 0.55
        if self._has_switch():
            gpus = [spot[0] for node, spot in spots.items() if node[0] == "g"]
            arcs = [abs(spots[f"g{a}"][0] - spots[f"g{b}"][0]) for a, b in self._arcs()]
            over = max((_ARC * span / _STEP for span in arcs), default=0.0)
            spots["N"] = ((min(gpus) + max(gpus)) / 2, self._gpu_y() + 1.6 + over)
        return spots

    def _centre(self, node: str, y: float, spots: Spots) -> None:
        """Puts a root or switch over the middle of the nodes below it."""
        below = self._leaves(node)
        if below:
            xs = [spots[leaf][0] for leaf in below]
            spots[node] = ((min(xs) + max(xs)) / 2, y)
        for child in self._children.get(node, []):
            if child[0] == "u":
                self._centre(child, y + 1.6, spots)

    def paint(self, axes: Any, title: str) -> None:
        self._boxes(axes)
        done: set[frozenset[str]] = set()
        for edge in self._platform.edges:
            pair = frozenset((edge.source, edge.target))
            # A switch that leads to no GPU gets no place.
            if pair not in done and pair <= self._spots.keys():
                done.add(pair)
                self._edge(axes, edge)
        for node, spot in self._spots.items():
            self._node(axes, node, *spot)
        left = min(x for x, _ in self._spots.values()) - _STEP * 0.75
        axes.text(left, self._top + 0.62, title, fontsize=13, fontweight="bold", va="center")
        axes.text(
            left,
            self._top + 0.2,
            self._subtitle(),
            fontsize=9,
            color="#374151",
            va="center",
        )
        self._legend(axes, left)
        axes.set_xlim(left, self._right)
        axes.set_ylim(-1.35, self._top + 0.95)
        axes.set_axis_off()

    def _subtitle(self) -> str:
        count = len(self._platform.joint)
        more = f"; {count} limits over both directions are not drawn" if count else ""
        return f"GB/s one way; two figures: up / down, or to the right / to the left{more}"

    def _boxes(self, axes: Any) -> None:
        """Draws a frame around each socket and the nodes below it."""
        from matplotlib.patches import FancyBboxPatch

        for socket in range(len(self._platform.sockets)):
            nodes = [f"m{socket}", f"s{socket}", *self._leaves(f"s{socket}")]
            xs = [self._spots[node][0] for node in nodes]
            low, high = min(xs) - 0.62, max(xs) + 0.62
            axes.add_patch(
                FancyBboxPatch(
                    (low, -0.45), high - low, self._gpu_y() + 0.95,
                    boxstyle="round,pad=0,rounding_size=0.15",
                    facecolor="#f9fafb", edgecolor="#d1d5db", linewidth=1, zorder=0,
                )
            )  # fmt: skip

    def _node(self, axes: Any, node: str, x: float, y: float) -> None:
        from matplotlib.patches import FancyBboxPatch

        width = _GPU_WIDTH
        if node == "N":
            gpus = [spot[0] for name, spot in self._spots.items() if name[0] == "g"]
            width = max(gpus) - min(gpus) + _GPU_WIDTH
        axes.add_patch(
            FancyBboxPatch(
                (x - width / 2, y - _HEIGHT / 2), width, _HEIGHT,
                boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=FILL[node[0]], edgecolor="#374151", linewidth=0.8, zorder=4,
            )
        )  # fmt: skip
        axes.text(x, y, label(node), ha="center", va="center", fontsize=9, zorder=5)

    def _edge(self, axes: Any, edge: Edge) -> None:
        kinds = {edge.source[0], edge.target[0]}
        if kinds == {"g"}:
            self._arc(axes, edge)
            return
        low, high = sorted((edge.source, edge.target), key=lambda node: self._spots[node][1])
        (x0, y0), (x1, y1) = self._spots[low], self._spots[high]
        colour, at = PCIE, 0.62
        if "m" in kinds:
            colour, at = DRAM, 0.5
        elif kinds == {"s"}:
            self._socket_link(axes, edge)
            return
        elif "N" in kinds:
            gpu = edge.source if edge.source[0] == "g" else edge.target
            x0 = x1 = self._spots[gpu][0]
            colour, at = NVLINK, 0.5
        self._line(axes, [x0, x1], [y0, y1], colour, self._most(edge))
        spot = (x0 + (x1 - x0) * at, y0 + (y1 - y0) * at)
        self._label(axes, spot, self._rates(low, high), colour)

    def _socket_link(self, axes: Any, edge: Edge) -> None:
        left, right = sorted((edge.source, edge.target), key=lambda node: self._spots[node][0])
        (x0, y0), (x1, _) = self._spots[left], self._spots[right]
        between = [node for node, (x, _) in self._spots.items() if node[0] == "s" and x0 < x < x1]
        steps = [index / 40 for index in range(41)]
        # A link that passes other sockets bends below them.
        sag = 0.55 * len(between)
        xs = [x0 + (x1 - x0) * t for t in steps]
        ys = [y0 - sag * 4 * t * (1 - t) for t in steps]
        self._line(axes, xs, ys, SOCKET, self._most(edge))
        there, back = self._platform.rate(left, right), self._platform.rate(right, left)
        text = f"{there or 0:g}" if there == back else f"{there or 0:g} / {back or 0:g}"
        self._label(axes, (xs[20], ys[20]), text, SOCKET)

    def _arc(self, axes: Any, edge: Edge) -> None:
        """Draws half an ellipse over the GPUs. It is higher the further apart they are."""
        left, right = sorted((edge.source, edge.target), key=lambda node: self._spots[node][0])
        (x0, y0), (x1, _) = self._spots[left], self._spots[right]
        high = _ARC * (x1 - x0) / _STEP
        turns = [math.pi * index / 60 for index in range(61)]
        xs = [(x0 + x1) / 2 - (x1 - x0) / 2 * math.cos(turn) for turn in turns]
        ys = [y0 + _HEIGHT / 2 + high * math.sin(turn) for turn in turns]
        self._line(axes, xs, ys, NVLINK, self._most(edge))
        there, back = self._platform.rate(left, right), self._platform.rate(right, left)
        text = f"{there or 0:g}" if there == back else f"{there or 0:g} / {back or 0:g}"
        self._label(axes, (xs[30], ys[30]), text, NVLINK)

    def _most(self, edge: Edge) -> float:
        return max(edge.gb_per_s, self._platform.rate(edge.target, edge.source) or 0)

    def _rates(self, low: str, high: str) -> str:
        up, down = self._platform.rate(low, high), self._platform.rate(high, low)
        return f"{up or 0:g}" if up == down else f"{up or 0:g} / {down or 0:g}"

    def _line(self, axes: Any, xs: list[float], ys: list[float], colour: str, rate: float) -> None:
        thick = line_width(rate)
        axes.plot(xs, ys, color=colour, linewidth=thick, solid_capstyle="round", zorder=2)

    def _label(self, axes: Any, spot: tuple[float, float], text: str, colour: str) -> None:
        axes.text(
            *spot, text, fontsize=7.5, color=colour, ha="center", va="center", zorder=6,
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
        )  # fmt: skip

    def _legend(self, axes: Any, left: float) -> None:
        for index, (colour, text) in enumerate(self._kinds()):
            x = left + 0.1 + 1.9 * index
            axes.plot([x, x + 0.35], [-0.95, -0.95], color=colour, linewidth=3)
            axes.text(x + 0.45, -0.95, text, fontsize=8.5, va="center")

    def _kinds(self) -> Iterator[tuple[str, str]]:
        names = {"".join(sorted(e.source[0] + e.target[0])) for e in self._platform.edges}
        yield DRAM, "host memory"
        if "ss" in names:
            yield SOCKET, "socket link"
        yield PCIE, "PCIe or C2C"
        if names & {"gg", "Ng"}:
            yield NVLINK, "NVLink"
