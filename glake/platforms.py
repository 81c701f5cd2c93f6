"""The platforms file: capacity graphs of machines that the simulator can be."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glake import library_path
from glake.errors import InvalidOption


@dataclass(frozen=True)
class Edge:
    """One direction of a link; the capacity is in 1e9 bytes per second."""

    source: str
    target: str
    gb_per_s: float


@dataclass(frozen=True)
class Platform:
    """A machine's directed capacity graph. Nodes: mS is socket S's memory, sS its root complex.

    uK is a PCIe switch, gI a GPU, N the NVSwitch.
    """

    gpus: int
    sockets: int
    edges: tuple[Edge, ...]

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def load_platforms(path: str | None = None) -> dict[str, Platform]:
    """The platforms of a file (default: the one installed with glake) by name.

    InvalidOption if it cannot be read or is not a platforms file.
    """
    file = Path(path) if path else library_path().with_name("platforms.json")
    try:
        content = json.loads(file.read_text())
        return {name: _platform(row) for name, row in content.items() if isinstance(row, dict)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidOption(f"GLAKE_SIM_PLATFORMS: {file} is no platforms file: {error}") from error


def _platform(row: dict[str, Any]) -> Platform:
    edges = tuple(Edge(str(a), str(b), float(rate)) for a, b, rate in row["edges"])
    return Platform(gpus=int(row["gpus"]), sockets=len(row["sockets"]), edges=edges)
