"""The route of a plain copy through a platform, its rate, and its kind.

The routes are those of csrc/plan/topology.cpp: NVLink if there is one, else the shortest way
through switches and root complexes. They serve to show and to probe a platform. Plans are made in
C++.
"""

from collections import deque
from enum import Enum

from glake.platforms import Edge, Platform


class Way(Enum):
    """The ways in which two GPUs can be joined, the best one first."""

    NVLINK = "NVLink"
    NVSWITCH = "NVSwitch"
    SAME_SWITCH = "same switch"
    SAME_SOCKET = "same socket"
    ACROSS = "across sockets"
    NONE = "not joined"


def parents(platform: Platform) -> dict[str, str]:
    """The node above each switch and GPU in its PCIe tree, towards the socket."""
    found: dict[str, str] = {}
    for socket, gpus in enumerate(platform.sockets):
        queue = deque([f"s{socket}"])
        while queue:
            node = queue.popleft()
            for edge in platform.edges:
                child = edge.target
                if edge.source != node or child in found:
                    continue
                if child[0] == "u" or (child[0] == "g" and int(child[1:]) in gpus):
                    found[child] = node
                    if child[0] == "u":
                        queue.append(child)
    return found


class Routes:
    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._ahead: dict[str, list[Edge]] = {}
        for edge in platform.edges:
            self._ahead.setdefault(edge.source, []).append(edge)

    def way(self, a: int, b: int) -> Way:
        """The way in which GPU `a` reaches GPU `b`."""
        nodes = [edge.source for edge in self.between(f"g{a}", f"g{b}")][1:]
        if not nodes:
            return Way.NVLINK if self._edge(f"g{a}", f"g{b}") else Way.NONE
        if nodes == ["N"]:
            return Way.NVSWITCH
        roots = sum(node[0] == "s" for node in nodes)
        return (Way.SAME_SWITCH, Way.SAME_SOCKET, Way.ACROSS)[min(roots, 2)]

    def between(self, source: str, target: str) -> list[Edge]:
        """The edges of a plain copy between two nodes mS or gI. It is empty if there is no
        route."""
        if (direct := self._edge(source, target)) is not None:
            return [direct]
        out, into = self._edge(source, "N"), self._edge("N", target)
        if out is not None and into is not None:
            return [out, into]
        came: dict[str, Edge] = {}
        queue = deque([source])
        while queue and target not in came:
            for edge in self._ahead.get(queue.popleft(), []):
                if edge.target == source or edge.target in came:
                    continue
                if edge.target == target or edge.target[0] in "su":
                    came[edge.target] = edge
                    queue.append(edge.target)
        way: list[Edge] = []
        while target in came and target != source:
            way.insert(0, came[target])
            target = came[target].source
        return way

    def rate(self, source: str, target: str) -> float:
        """GB/s of a plain copy alone; 0 if there is no route."""
        return min((edge.gb_per_s for edge in self.between(source, target)), default=0.0)

    def _edge(self, source: str, target: str) -> Edge | None:
        found = (edge for edge in self._ahead.get(source, []) if edge.target == target)
        return next(found, None)
