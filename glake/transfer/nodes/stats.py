"""The figures of nodes: those of each node, and the sums for the process."""

from __future__ import annotations

import os
import threading
from dataclasses import asdict, dataclass


@dataclass
class NodeStats:
    """The figures of a node since it was made.

    Attributes:
        reads, writes: transfers that this node began, and that succeeded.
        failed: transfers that this node began, and that failed.
        retries: pieces that were read again, after the network failed or a checksum differed.
        lost_peers: connections that ended without being closed, whichever node began them.
        network_read_bytes: bytes that this node's engine has read from peers.
        network_sent_bytes: bytes that peers' engines have read from this node.
        gpu_bytes: bytes copied between pinned buffers and GPUs, over all paths.
        host_bytes: bytes copied between pinned buffers and other host memory.
        buffer_bytes: bytes of the node's pinned buffers.
        buffers_held: buffers that are not used now, because a read that did not end may still
            write to them.
        peers: open connections, whichever node began them.
        under_way: transfers that this node began, and that are not over.
    """

    reads: int = 0
    writes: int = 0
    failed: int = 0
    retries: int = 0
    lost_peers: int = 0
    network_read_bytes: int = 0
    network_sent_bytes: int = 0
    gpu_bytes: int = 0
    host_bytes: int = 0
    buffer_bytes: int = 0
    buffers_held: int = 0
    peers: int = 0
    under_way: int = 0


class Counters:
    """Counts for a node's NodeStats, and for the process."""

    def __init__(self) -> None:
        self._own = NodeStats()

    def add(self, **changes: int) -> None:
        """Adds to fields."""
        with _lock:
            for stats in (self._own, _all):
                for name, change in changes.items():
                    setattr(stats, name, getattr(stats, name) + change)

    def as_dict(self) -> dict[str, int]:
        """The figures of the node."""
        with _lock:
            return asdict(self._own)


_lock = threading.Lock()
_all = NodeStats()


def totals() -> dict[str, int]:
    """The sums over all nodes of the process: the fields of NodeStats."""
    with _lock:
        return asdict(_all)


def _forget() -> None:
    global _lock, _all
    _lock, _all = threading.Lock(), NodeStats()  # the parent's nodes are not the child's


os.register_at_fork(after_in_child=_forget)
