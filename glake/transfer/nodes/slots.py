"""Pinned buffers of one size, in one block. Each is lent to one user at a time."""

from __future__ import annotations

import threading
import time
from collections import Counter

from glake.errors import BusyTimeout, PeerFailed
from glake.transfer.nodes.backend import NetworkRead
from glake.transfer.nodes.stats import Counters

_LOOK = 0.05  # seconds between two checks of the reads that did not end


class Slots:
    """The buffers, of `size` bytes each, from `address` on."""

    def __init__(self, address: int, size: int, count: int, counters: Counters) -> None:
        self.size = size
        self._free = [address + i * size for i in range(count)]
        self._count = count
        self._held: list[tuple[int, str, NetworkRead]] = []
        self._kept: Counter[int] = Counter()  # held buffers that were not given back yet
        self._changed = threading.Condition()
        self._counters = counters

    def take(self, timeout: float) -> int:
        """The address of a free buffer. It belongs to the caller until give_back().

        Raises:
            BusyTimeout: none was free in `timeout` seconds.
        """
        end = time.monotonic() + timeout
        with self._changed:
            while not self._free:
                self._look()
                left = end - time.monotonic()
                if not self._free and left <= 0:
                    raise BusyTimeout(
                        f"no pinned buffer in {timeout:g} s: of {self._count}, {len(self._held)} "
                        "are kept for reads from peers that stand still; closing the node ends them"
                    )
                if not self._free:
                    self._changed.wait(min(left, _LOOK) if self._held else left)
            return self._free.pop()

    def give_back(self, address: int) -> None:
        """Frees a buffer. If it is held, it is free only once the read has ended."""
        with self._changed:
            if self._kept[address]:
                self._kept[address] -= 1
                return
            self._free.append(address)
            self._changed.notify()

    def hold(self, address: int, peer: str, read: NetworkRead) -> None:
        """Holds a buffer until the read has ended, because the read may still write to it."""
        with self._changed:
            self._kept[address] += 1
            self._held.append((address, peer, read))
            self._counters.add(buffers_held=1)

    def holds(self, peer: str) -> bool:
        """Whether a read from that peer has not ended."""
        with self._changed:
            self._look()
            return any(each == peer for _, each, _ in self._held)

    def forget(self) -> None:
        """Drops the reads that have not ended, because the engine is about to end."""
        with self._changed:
            self._counters.add(buffers_held=-len(self._held))
            self._held = []

    def _look(self) -> None:
        left = []
        for address, peer, read in self._held:
            try:
                over = read.over()
            except PeerFailed:
                over = True
            if over:
                self._free.append(address)
                self._counters.add(buffers_held=-1)
            else:
                left.append((address, peer, read))
        self._held = left
