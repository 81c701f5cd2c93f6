"""Times sets of plain copies, by glake's driver or in another way that a test provides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from glake.errors import CopyRefused, DriverError, InvalidArgument
from glake.transfer.topology.topology import Topology

_BYTES = 16 << 20  # bytes of one copy
_FEWEST, _MOST = 3, 48  # copies one after another on each stream
# The copies of a stream take at least this long, so that errors of clocks and queues matter little.
_LEAST_NS = 1_500_000
# Small copies show the time of a copy besides its bytes: the bytes of one, and their number.
_SMALL, _CHAIN = 4096, 17

_Place = tuple[int, int]  # a GPU or -1, and the socket


@dataclass(frozen=True)
class Copy:
    """From one node's memory to another's: "m0" (host memory of socket 0) or "g3"."""

    source: str
    target: str


class Copier(Protocol):
    """Times plain copies. An implementation decides how they are made."""

    def rates(self, copies: Sequence[Copy]) -> Sequence[float]:
        """GB/s of each of these copies while all of them run. 0: the copy cannot be made."""
        ...


class DriverCopier:
    """Makes plain copies by glake's driver, and times them by its events.

    It is a context manager. It opens the process's engine over the topology, whose GPUs and sockets
    the copies name. At the end it closes the engine. The engine uses 32 MiB of each GPU, and 32 MiB
    of pinned host memory for each copy of a set, and gives all of it back. It raises
    InvalidArgument if an engine is open already, because that engine's copies would disturb the
    measurement. `notes` says what could not be measured.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._overhead: dict[str, float] = {}  # ns of a copy besides its bytes, by its ends
        self.notes: list[str] = []

    def __enter__(self) -> "DriverCopier":
        """Opens the engine."""
        from glake.transfer.engine import Engine, open_engine

        if open_engine() is not None:
            raise InvalidArgument(
                "an engine is open, whose copies would disturb the probe: close it first "
                "(glake.transfer.default_engine().close())"
            )
        self._engine = Engine(self._topology, relays="all")  # asks no relay service
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self._engine.close()

    def rates(self, copies: Sequence[Copy]) -> list[float]:
        """GB/s of each copy while all run. All are 0 if a copy needs host memory on a socket that
        has none to give.

        Raises OutOfMemory, BusyTimeout (if the copies do not proceed) or DriverError.
        """
        try:
            return self._rates(copies)
        except CopyRefused as refusal:
            if str(refusal) not in self.notes:
                self.notes.append(str(refusal))
            return [0.0] * len(copies)

    def _rates(self, copies: Sequence[Copy]) -> list[float]:
        ends = self._timed(copies, _BYTES, _FEWEST)
        shortest = min(each[-1] for each in ends)
        if shortest < _LEAST_NS:
            repeats = math.ceil(_FEWEST * _LEAST_NS / max(shortest, 1))
            ends = self._timed(copies, _BYTES, min(repeats, _MOST))
        window = min(each[-1] for each in ends)  # all of them run until then
        found = []
        for copy, each in zip(copies, ends, strict=True):
            done = _done(each, window)
            moving = window - done * self._besides(copy, each[-1] / len(each))
            found.append(done * _BYTES / max(moving, 1.0))
        return found

    def _besides(self, copy: Copy, took: float) -> float:
        """The nanoseconds that a copy takes besides those for its bytes, from a chain of small
        copies."""
        kind = copy.source[0] + copy.target[0]
        if kind not in self._overhead:
            ends = self._timed([copy], _SMALL, _CHAIN)[0]
            small = (ends[-1] - ends[0]) / (_CHAIN - 1)
            self._overhead[kind] = max(small - took * _SMALL / _BYTES, 0.0)
        return self._overhead[kind]

    def _timed(self, copies: Sequence[Copy], size: int, repeats: int) -> list[list[int]]:
        from glake import _C

        pairs = [(_place(copy.target), _place(copy.source)) for copy in copies]
        ends = _C.time_copies(pairs, size, repeats)
        if any(each[-1] <= 0 for each in ends):
            raise DriverError("copies take no time on this driver's clock: nothing can be measured")
        return ends


def _place(node: str) -> _Place:
    number = int(node[1:])
    return (number, 0) if node[0] == "g" else (-1, number)


def _done(ends: Sequence[int], window: int) -> float:
    """How many copies were done by `window`. The last one counts in part."""
    before = 0
    for count, end in enumerate(ends):
        if end > window:
            return count + (window - before) / (end - before)
        before = end
    return float(len(ends))
