"""A platform in Graphviz's DOT language, for `dot`, `neato` and others to lay out."""

from pathlib import Path

from glake import files
from glake.platforms import Platform
from glake.transfer.topology.picture import DRAM, FILL, NVLINK, PCIE, SOCKET, label
from glake.transfer.topology.topology import Topology

SUFFIXES = (".gv", ".dot")
_LEVELS = "msugN"  # from host memory up to the NVSwitch


def write(topology: Topology, file: Path) -> None:
    """Writes the graph: an edge a link, labelled with its GB/s upwards / downwards. OSError if the
    file cannot be written."""
    files.write_whole(file, text(topology), mode=0o644)


def text(topology: Topology) -> str:
    platform = topology.platform
    ends = {end for edge in platform.edges for end in (edge.source, edge.target)}
    nodes = sorted(ends, key=lambda node: (_LEVELS.index(node[0]), len(node), node))
    lines = [f"graph {_quoted(topology.name)} {{"]
    lines += [f"  label={_quoted(f'{topology.name} ({topology.source}), GB/s up / down')}"]
    lines += ['  rankdir=BT; node [shape=box, style="rounded,filled", fontname=Helvetica]']
    lines += ["  edge [fontname=Helvetica, fontsize=9]"]
    lines += [
        f"  {node} [label={_quoted(label(node))}, fillcolor={_quoted(FILL[node[0]])}]"
        for node in nodes
    ]
    lines += [f"  {{ rank=same; {' '.join(n for n in nodes if n[0] == kind)} }}" for kind in "msg"]
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
    return f"  {low} -- {high} [label={_quoted(rates)}, color={_quoted(colour)}]"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
