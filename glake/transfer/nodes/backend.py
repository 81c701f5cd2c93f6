"""The interface of engines that carry bytes between nodes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import ClassVar


class NetworkRead(ABC):
    """One read of another node's memory that is under way."""

    @abstractmethod
    def over(self) -> bool:
        """Whether all its bytes have arrived.

        Once it has returned True or raised, the engine writes to the memory no more.

        Raises:
            PeerFailed: the read has failed.
        """

    def wait(self, seconds: float) -> None:
        """Waits until over() may have news, or until the time is up.

        Args:
            seconds: at most so long.
        """
        time.sleep(seconds)

    def cancel(self) -> None:  # noqa: B027
        """Ends the read, if the engine can end one alone. Then over() raises, and does not return
        False."""


class Backend(ABC):
    """An engine for one node: it reads other nodes' registered memory into this node's.

    No node writes into another node's memory: the other node reads the bytes that are meant for it.
    So a peer that is late or lost cannot change memory here. One object serves one Node, which
    opens and closes it. Calls may come from several threads.
    """

    name: ClassVar[str]
    """The engine's name. Nodes compare it, because both must have the same engine."""

    @abstractmethod
    def open(self, address: int, size: int, host: str) -> None:
        """Starts the engine. It and its peers' engines may read the given host memory. Only it may
        write there.

        Args:
            address: of the memory, which stays until close() returns.
            size: of the memory in bytes.
            host: the address of this node that others reach.

        Raises:
            PackageMissing: the engine's package is missing; the text names the line that installs
                it.
            PeerFailed: the engine does not start.
            InvalidArgument: another node has opened this object already.
        """

    @abstractmethod
    def metadata(self) -> bytes:
        """The bytes that a peer's engine must know of this one. They never change."""

    @abstractmethod
    def add(self, metadata: bytes) -> str:
        """Adds a peer.

        Args:
            metadata: the result of metadata() in the peer.

        Returns:
            The name that the peer then has here.

        Raises:
            PeerRefused: the engine does not take this metadata.
            PeerFailed: the engine is closed.
        """

    @abstractmethod
    def remove(self, peer: str) -> None:
        """Forgets a peer. Nothing may be read from it at that time.

        Args:
            peer: its name here.
        """

    @abstractmethod
    def read(self, peer: str, local: int, remote: int, size: int) -> NetworkRead:
        """Starts reading a peer's memory.

        Args:
            peer: its name here.
            local: the address to read to.
            remote: the address to read from, in the peer.
            size: in bytes.

        Raises:
            PeerFailed: the engine refuses.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the engine, and with it all reads. A second call does nothing."""
