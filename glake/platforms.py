"""A machine as a directed graph of capacities: its classes, and the platforms file that holds them.

Presets, users' own files, the results of discovery (glake/transfer/topology/) and the simulator use
one format. `docs/topology.md` describes it.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

COPY_US = 8.0  # the time of a chunk's copy besides its bytes, if a file gives none


def for_people(names: str) -> str:
    """Nodes, edges and paths of a graph as messages show them: GPU g3 is cuda:3, the memory m0 of a
    socket cpu:0, its PCIe root s0 cpu:0/pcie.
    """
    gpus = re.sub(r"\bg(?=\d+\b)", "cuda:", names)
    memory = re.sub(r"\bm(?=\d+\b)", "cpu:", gpus)
    return re.sub(r"\bs(\d+)\b", r"cpu:\1/pcie", memory)


@dataclass(frozen=True)
class Edge:
    """One direction of a link. The capacity is in 1e9 bytes per second."""

    source: str
    target: str
    gb_per_s: float

    @property
    def name(self) -> str:
        return f"{self.source}>{self.target}"


@dataclass(frozen=True)
class Joint:
    """A limit in GB/s on the sum of weight x load over edges (by name, "g0>N")."""

    weights: tuple[tuple[str, float], ...]
    gb_per_s: float


@dataclass(frozen=True)
class Platform:
    """A machine's directed capacity graph. Nodes: mS is socket S's memory, sS its root complex.

    uK is a PCIe switch, gI a GPU, N the NVSwitch. `sockets` holds the GPUs of each socket,
    `numa_nodes` the system's NUMA nodes of each (empty: socket S is node S). `assumed` says what
    was estimated or taken for granted.
    """

    gpus: int
    sockets: tuple[tuple[int, ...], ...]
    edges: tuple[Edge, ...]
    joint: tuple[Joint, ...] = ()
    assumed: tuple[str, ...] = ()
    numa_nodes: tuple[tuple[int, ...], ...] = ()
    copy_us: float = COPY_US

    def rate(self, source: str, target: str) -> float | None:
        """GB/s of the edge between two nodes; None if there is none."""
        for edge in self.edges:
            if (edge.source, edge.target) == (source, target):
                return edge.gb_per_s
        return None

    def socket_of(self, gpu: int) -> int:
        return next(index for index, gpus in enumerate(self.sockets) if gpu in gpus)

    def as_dict(self) -> dict[str, Any]:
        """The platform as an object of a platforms file."""
        row: dict[str, Any] = {
            "gpus": self.gpus,
            "sockets": [list(gpus) for gpus in self.sockets],
            "edges": [[edge.source, edge.target, edge.gb_per_s] for edge in self.edges],
            "joint": [[dict(each.weights), each.gb_per_s] for each in self.joint],
            "assumed": list(self.assumed),
            "per_copy_us": self.copy_us,
        }
        if self.numa_nodes:
            row["numa_nodes"] = [list(nodes) for nodes in self.numa_nodes]
        return row


def file_text(platforms: dict[str, Platform]) -> str:
    """A platforms file with these platforms, for `glake topo --file` and GLAKE_SIM_PLATFORMS."""
    content: dict[str, Any] = {"per_copy_us": COPY_US}
    content |= {name: each.as_dict() for name, each in platforms.items()}
    # Text is not made ASCII, because the simulator's reader refuses \u escapes.
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
