"""Memory that a node has exposed under a name."""

from __future__ import annotations

import threading

from glake.errors import BusyTimeout, InvalidArgument
from glake.transfer.array_memory import ArrayMemory


class Exposed:
    """Contiguous memory of the host or a GPU. It is kept as long as requests use it.

    Attributes:
        gpu: the GPU that has the memory, or HOST.
        writable: whether peers may write to it.
    """

    def __init__(self, name: str, memory: ArrayMemory, gpu: int, writable: bool) -> None:
        self.name, self.memory, self.gpu, self.writable = name, memory, gpu, writable
        self._users = 0
        self._hidden = False
        self._changed = threading.Condition()

    def begin(self, offset: int, size: int, write: bool) -> int:
        """Notes that a request uses a range, and returns the range's address. end() must follow.
        Raises InvalidArgument if the range is outside the memory, or may not be written."""
        if write and not self.writable:
            raise InvalidArgument(f"{self.name!r} was not exposed as writable")
        if offset + size > self.memory.bytes:
            raise InvalidArgument(
                f"bytes {offset} to {offset + size} of {self.name!r}, which has {self.memory.bytes}"
            )
        with self._changed:
            if self._hidden:
                raise InvalidArgument(f"{self.name!r} is no longer exposed")
            self._users += 1
        return self.memory.address + offset

    def end(self) -> None:
        """Notes that a request no longer uses its range."""
        with self._changed:
            self._users -= 1
            self._changed.notify_all()

    def hide(self, timeout: float) -> None:
        """Lets no new request begin, and waits for requests that have begun. Raises BusyTimeout if
        one has not ended in `timeout` seconds."""
        with self._changed:
            self._hidden = True
            if not self._changed.wait_for(lambda: self._users == 0, timeout):
                raise BusyTimeout(f"a copy of {self.name!r} has not ended in {timeout:g} s")
