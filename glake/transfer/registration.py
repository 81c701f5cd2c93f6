"""Host memory that is pinned in place."""

from __future__ import annotations

from glake import _C
from glake.errors import BusyTimeout, DriverError, WrongType
from glake.transfer import handle, timeouts
from glake.transfer.array_memory import ArrayMemory

# Pinned memory must not be freed. So it is kept until it is unpinned, even if the registration is
# dropped.
_registered: dict[int, Registration] = {}


class Registration:
    """Host memory that is pinned, or is being pinned. As a context manager, it unpins the memory at
    the end.

    Attributes:
        address: of the memory.
        bytes: of the memory.
    """

    def __init__(self, memory: ArrayMemory, background: bool) -> None:
        """Begins to pin the memory. Raises WrongType for anything but an ArrayMemory."""
        if not isinstance(memory, ArrayMemory):
            raise WrongType(f"a Registration is what register_host() returns, not of {memory!r}")
        self._memory = memory  # keeps it alive while it is pinned
        self._open = self._pinned = False
        self._family = handle.family()
        self.address, self.bytes = memory.address, memory.bytes
        _C.register_host(self.address, self.bytes, background)
        self._open = True
        _registered[self.address] = self

    def done(self) -> bool:
        """Whether all of the memory is pinned.

        Raises:
            GlakeError: as of wait(), except BusyTimeout.
        """
        handle.require_own(self._family)
        if not self._pinned:
            self._pinned = _C.register_host_wait(self.address, 0)
        return self._pinned

    def wait(self, timeout: float | None = None) -> Registration:
        """Returns itself once all of the memory is pinned.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            BusyTimeout: the memory is not pinned by then. Pinning goes on.
            DriverError: the driver refuses. The part that was pinned stays so until unregister(),
                or until the memory is registered again.
            InvalidPointer: it was unregistered.
        """
        handle.require_own(self._family)
        timeout = timeouts.seconds(timeout)
        limit = (1 << 64) - 1 if timeout is None else int(timeout * 1e9)
        if not _C.register_host_wait(self.address, limit):
            raise BusyTimeout(f"pinning {self.bytes} bytes is not done in {timeout} s")
        self._pinned = True
        return self

    def progress(self) -> tuple[int, int]:
        """(bytes pinned, bytes of all)."""
        handle.require_own(self._family)
        return _C.register_host_progress(self.address)

    def unregister(self) -> None:
        """Unpins the memory, and pins no more of it. A second call does nothing.

        No copy of the memory may be under way.

        Raises:
            DriverError: the driver refuses. The call may be tried again.
        """
        handle.require_own(self._family)
        if self._open:
            _C.unregister_host(self.address)
            _registered.pop(self.address, None)
            self.ended()

    def ended(self) -> None:
        """Notes that the memory is unpinned. The engine calls it."""
        self._open, self._pinned = False, False

    def __enter__(self) -> Registration:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Unpins it."""
        self.unregister()


def end_failed(address: int) -> None:
    """Ends a registration of that memory if it failed in the background: its handle may be gone."""
    known = _registered.get(address)
    if known is None:
        return
    try:
        known.done()
    except DriverError:
        known.unregister()


def forget() -> None:
    """Forgets all registrations, because the engine has ended and unpinned their memory."""
    while _registered:
        _registered.popitem()[1].ended()
