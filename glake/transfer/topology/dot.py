"""Writes a platform in Graphviz's DOT language, and draws it by `dot` if that is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from glake import files
from glake.errors import GlakeError
from glake.platforms import Platform
from glake.transfer.topology.look import DRAM, FILL, NVLINK, PCIE, SOCKET, label, line_width
from glake.transfer.topology.topology import Topology

SUFFIXES = (".gv", ".dot")
DRAWN = (".png", ".svg")
_LEVELS = "msugN"  # from host memory up to the NVSwitch


def write(topology: Topology, file: Path) -> None:
    """Writes the graph's text. Raises OSError if the file cannot be written."""
    files.write_whole(file, text(topology), mode=0o644)


def program() -> str | None:
    """The path of Graphviz's `dot`. None if it is not installed."""
    return shutil.which("dot")


def draw(topology: Topology, file: Path) -> None:
    """Makes `dot` draw the graph into a .png or .svg file, whole or not at all.

    Raises:
        GlakeError: `dot` failed. Its own message is in the text.
        OSError: the file cannot be written.
    """
    words = ["dot", f"-T{file.suffix.lower().lstrip('.')}"]
    done = subprocess.run(words, input=text(topology).encode(), capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise GlakeError(
            f"Graphviz's dot could not draw {file}: {said}; give a name that ends in .gv for the "
            "graph itself, and run Graphviz on it"
        )
    files.write_whole(file, done.stdout, mode=0o644)


def text(topology: Topology) -> str:
    """The graph in the DOT language. Each link is an edge with its GB/s upwards / downwards as
    label."""
    platform = topology.platform
    ends = {end for edge in platform.edges for end in (edge.source, edge.target)}
    nodes = sorted(ends, key=lambda node: (_LEVELS.index(node[0]), len(node), node))
    title = f"{topology.name} ({topology.source}), GB/s up / down"
    lines = [
        f"graph {_quoted(topology.name)} {{",
        f"  label={_quoted(title)}; labelloc=t; fontname=Helvetica",
        '  node [shape=box, style="rounded,filled", fontname=Helvetica]',
        "  edge [fontname=Helvetica, fontsize=9]",
    ]
    if any(edge.source[0] == edge.target[0] == "g" for edge in platform.edges):
        # Links among GPUs get no levels, because with levels they would be drawn over each other.
        lines += ["  layout=neato; mode=KK; overlap=false; splines=true"]
    else:
        lines += ["  rankdir=BT; nodesep=0.6; ranksep=0.9"]
        for kind in "msg":
            lines += [f"  {{ rank=same; {' '.join(node for node in nodes if node[0] == kind)} }}"]
    for node in nodes:
        colour = _quoted(FILL[node[0]])
        lines += [f"  {node} [label={_quoted(label(node))}, fillcolor={colour}]"]
    pairs = [tuple(sorted((each.source, each.target), key=nodes.index)) for each in platform.edges]
    lines += [_link(platform, low, high) for low, high in dict.fromkeys(pairs)]
    return "\n".join([*lines, "}"]) + "\n"


def _link(platform: Platform, low: str, high: str) -> str:
    up, down = platform.rate(low, high) or 0, platform.rate(high, low) or 0
    rates = f"{up:g}" if up == down else f"{up:g} / {down:g}"
    kinds = {low[0], high[0]}
    colour = DRAM if "m" in kinds else PCIE
    if kinds == {"s"}:
        colour = SOCKET
    elif kinds <= {"g", "N"}:
        colour = NVLINK
    wide = f"penwidth={line_width(max(up, down)):.2f}"
    return f"  {low} -- {high} [label={_quoted(rates)}, color={_quoted(colour)}, {wide}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
