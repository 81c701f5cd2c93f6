"""Carries a node's pieces: between nodes by the network engine, and within the node by glake."""

from __future__ import annotations

import ctypes
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from glake.errors import PeerFailed, PeerLost
from glake.transfer.array_memory import HOST, Raw
from glake.transfer.engine import default_engine
from glake.transfer.host import pinned_block
from glake.transfer.nodes.backend import Backend, NetworkRead
from glake.transfer.nodes.slots import Slots
from glake.transfer.nodes.stats import Counters

RETRIES = 2  # how often a piece is tried again
_GRACE = 1.0  # seconds in which the engine must notice the end of a connection
_FIRST_LOOK, _LAST_LOOK = 20e-6, 1e-3


class Carrier:
    """The pinned buffers, the engine, and the engine's names of its peers.

    Attributes:
        fetching: buffers for transfers that this node has begun.
        serving: buffers for transfers that its peers have begun. They are separate, so that two
            nodes with many transfers do not wait for each other for ever.
    """

    def __init__(
        self, backend: Backend, host: str, block: int, depth: int, counters: Counters
    ) -> None:
        self.backend, self.block, self.counters = backend, block, counters
        size = 2 * block * depth
        self._memory, address = pinned_block(size)
        backend.open(address, size, host)
        self.fetching = Slots(address, block, depth, counters)
        self.serving = Slots(address + block * depth, block, depth, counters)
        self._peers: dict[bytes, list[Any]] = {}  # by metadata: [name, number of connections]
        self._lock = threading.Lock()
        counters.add(buffer_bytes=size)

    def close(self) -> None:
        """Ends the engine, then gives the memory back."""
        for slots in (self.fetching, self.serving):
            slots.forget()  # a read refers to the engine and would keep it alive
        self.backend.close()
        if self._memory is not None:
            self.counters.add(buffer_bytes=-len(self._memory))
        self._memory = None

    def join(self, metadata: bytes) -> str:
        """Returns a peer's name. leave() must follow. A known peer is not added again, because the
        engine would end what is under way."""
        with self._lock:
            known = self._peers.get(metadata)
            if known is None:
                known = self._peers[metadata] = [self.backend.add(metadata), 0]
            known[1] += 1
            return str(known[0])

    def leave(self, metadata: bytes) -> None:
        """Notes that one of the peer's connections has ended. After the last one the engine forgets
        the peer, if no read from it is under way."""
        with self._lock:
            known = self._peers[metadata]
            known[1] -= 1
            if known[1] == 0 and not any(
                slots.holds(known[0]) for slots in (self.fetching, self.serving)
            ):
                del self._peers[metadata]
                self.backend.remove(known[0])

    def fetch(
        self,
        slots: Slots,
        slot: int,
        peer: str,
        remote: int,
        size: int,
        timeout: float,
        lost: Callable[[], bool],
    ) -> None:
        """Reads a peer's memory into a slot. A read that does not end is given up. If the engine
        cannot end it, the slot is held.

        Raises:
            PeerFailed: the engine reports that the read failed.
            PeerLost: the read did not end in `timeout` seconds, or the connection has ended.
        """
        end = time.monotonic() + timeout
        read = self.backend.read(peer, slot, remote, size)
        noticed, pause = False, _FIRST_LOOK
        while not read.over():
            if not noticed and lost():
                noticed, end = True, min(end, time.monotonic() + _GRACE)
            if time.monotonic() > end:
                _give_up(read, slots, slot, peer)
                why = "has ended" if noticed else f"has sent nothing for {timeout:g} s"
                raise PeerLost(f"the other node {why}: a read of {size} bytes does not end")
            read.wait(pause)
            pause = min(2 * pause, _LAST_LOOK)
        self.counters.add(network_read_bytes=size)

    def copy(
        self, gpu: int, to: int, source: int, size: int, stream: Any = None, checked: bool = False
    ) -> None:
        """Copies between a slot and memory of `gpu`, or of the host. The slot is `to` or `source`.
        Raises what the copy raises."""
        if gpu == HOST:
            ctypes.memmove(to, source, size)
            self.counters.add(host_bytes=size)
            return
        into = self._is_slot(to)
        places = (HOST, gpu) if into else (gpu, HOST)
        default_engine().copy(
            Raw(to, size, places[0]), Raw(source, size, places[1]), stream, checksum=checked
        ).wait()
        self.counters.add(gpu_bytes=size)

    def _is_slot(self, address: int) -> bool:
        begin = ctypes.addressof(self._memory)
        return begin <= address < begin + len(self._memory)


def _give_up(read: NetworkRead, slots: Slots, slot: int, peer: str) -> None:
    read.cancel()
    try:
        over = read.over()
    except PeerFailed:
        over = True
    if not over:
        slots.hold(slot, peer, read)


def checksum(address: int, size: int) -> int:
    """The CRC-32 of memory."""
    return zlib.crc32((ctypes.c_char * size).from_address(address))


def require_checksum(address: int, size: int, expected: int) -> None:
    """Raises PeerFailed unless memory has this checksum; -1 requires none."""
    if expected >= 0 and checksum(address, size) != expected:
        raise PeerFailed(f"{size} bytes have changed on their way: their checksums differ")
