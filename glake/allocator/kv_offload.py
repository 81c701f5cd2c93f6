"""A sequence of a KVCache that is in host memory for a while."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glake.transfer.array_memory import Raw
from glake.transfer.engine import default_engine
from glake.transfer.handle import Transfer
from glake.transfer.host import pinned

Piece = tuple[int, int]
"""Address on the GPU, and bytes."""


class Offloaded:
    """The bytes of a sequence's pieces, one after another in pinned host memory.

    Attributes:
        nbytes: of all pieces.
        transfer: the copy that brings them here.
    """

    def __init__(self, pieces: Iterable[Piece], device: int, stream: int) -> None:
        """Begins to copy them, after the work that the stream has. OutOfMemory: no host memory."""
        self._pieces, self._device = list(pieces), device
        self.nbytes = sum(nbytes for _, nbytes in self._pieces)
        self._memory = pinned(self.nbytes)
        self.transfer = self._copies([(host, gpu) for gpu, host in self._ends()], stream)

    def load(self, stream: int) -> Transfer:
        """Begins to copy them back, after the work that the stream has.

        Raises:
            CopyFailed: they never arrived here.
        """
        self.transfer.wait()
        return self._copies(self._ends(), stream)

    def _ends(self) -> list[tuple[Raw, Any]]:
        ends, at = [], 0
        for address, nbytes in self._pieces:
            ends.append((Raw(address, nbytes, self._device), self._memory[at : at + nbytes]))
            at += nbytes
        return ends

    def _copies(self, pairs: list[tuple[Any, Any]], stream: int) -> Transfer:
        return default_engine().copy_batch(pairs, (self._device, stream)) if pairs else nothing()


def nothing() -> Transfer:
    """The handle of a copy without bytes, which is done."""
    return Transfer((), 0, None)
