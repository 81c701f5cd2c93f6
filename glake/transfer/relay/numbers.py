"""Translates GPUs and limits between this process's numbers ("here") and the node's, which all
clients share."""

from __future__ import annotations

from collections.abc import Sequence

from glake.transfer.topology.node import Node

Ends = tuple[int, int, int, int]


class Numbers:
    """The numbers of one process on a node."""

    def __init__(self, node: Node) -> None:
        """Takes the GPUs that the process sees, in its order."""
        self._order = node.order
        self._here = {there: here for here, there in enumerate(node.order)}
        self._links = len(node.topology.platform.edges)

    def there(self, gpu: int) -> int:
        """The node's number of a GPU. Host memory stays -1."""
        return self._order[gpu] if gpu >= 0 else gpu

    def here(self, gpu: int) -> int:
        """This process's number of a GPU of the node."""
        return self._here[gpu]

    def ends_there(self, ends: Sequence[int]) -> Ends:
        """The ends of a copy: GPU, socket, GPU, socket."""
        return self.there(ends[0]), ends[1], self.there(ends[2]), ends[3]

    def limits_here(self, limits: Sequence[float]) -> list[float]:
        """The parts of limits, in this process's order: links, each GPU's own memory, then the
        others."""
        memory = [limits[self._links + there] for there in self._order]
        rest = limits[self._links + len(self._order) :]
        return [*limits[: self._links], *memory, *rest]
