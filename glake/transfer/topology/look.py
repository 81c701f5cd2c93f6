"""The look of a platform in every kind of picture: colours, names of nodes, widths of links."""

import math

from glake.platforms import for_people

DRAM, SOCKET, PCIE, NVLINK = "#6b7280", "#c2410c", "#1d4ed8", "#15803d"
FILL = {"m": "#e5e7eb", "s": "#fed7aa", "u": "#bfdbfe", "g": "#bbf7d0", "N": "#86efac"}


def label(node: str) -> str:
    """The name of a node in pictures."""
    return {"u": f"switch {node[1:]}", "N": "NVSwitch"}.get(node[0], for_people(node))


def line_width(gb_per_s: float) -> float:
    """The width of a link's line, in points. A faster link has a thicker line."""
    return min(0.8 + math.sqrt(gb_per_s / 40), 6.0)
