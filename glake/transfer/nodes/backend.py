"""What carries bytes between nodes: an engine made by others, behind this interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class NetworkRead(ABC):
    """One read of another node's memory, under way."""

    @abstractmethod
    def over(self) -> bool:
        """Whether all its bytes are here. Once it has returned True or raised, the engine writes
        to the memory no more.

        Raises:
            PeerFailed: it has ended otherwise.
        """


class Backend(ABC):
    """An engine for one node: it reads other nodes' registered memory into this node's.

    There is no writing into another node's memory: what goes there is read by it, so that no peer,
    however late or lost, can change memory here. One object serves one Node, which opens and
    closes it; every call may come from several threads.
    """

    name: ClassVar[str]
    """By which nodes see that they have the same engine."""

    @abstractmethod
    def open(self, address: int, size: int, host: str) -> None:
        """Starts the engine, with `size` bytes of host memory at `address` that it and its peers
        may read, and it may write.

        Args:
            address, size: the memory; it outlives close().
            host: the address of this node that others reach.

        Raises:
            PackageMissing: its package; the text names the line that installs it.
            PeerFailed: the engine does not start.
        """

    @abstractmethod
    def metadata(self) -> bytes:
        """What a peer's engine must know of this one. Always the same bytes."""

    @abstractmethod
    def add(self, metadata: bytes) -> str:
        """Makes a peer known, by its metadata; the name it then has here.

        Raises:
            PeerRefused: no such metadata.
        """

    @abstractmethod
    def remove(self, peer: str) -> None:
        """Forgets a peer, from which nothing is being read."""

    @abstractmethod
    def read(self, peer: str, local: int, remote: int, size: int) -> NetworkRead:
        """Starts reading `size` bytes at `remote` of a peer into `local`.

        Raises:
            PeerFailed: the engine refuses.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the engine, and with it all reads. Closing twice does nothing."""
