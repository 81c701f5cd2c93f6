"""A request of several pieces that is under way."""

from __future__ import annotations

import copy
import threading

from glake.errors import BusyTimeout, GlakeError
from glake.transfer import handle, timeouts


class PieceTransfer:
    """One request of several pieces. A caller can wait for it or ask about it.

    The object may be dropped. The request goes on, and its memory is kept until it is done. In a
    forked child each method raises Forked.

    Attributes:
        path: what the request reads or writes, as messages name it.
        bytes: of the whole request.
    """

    def __init__(self, path: str, size: int, pieces: int, keep: object) -> None:
        """`keep` must live until the last of `pieces` is done."""
        self.path, self.bytes = path, size
        self._keep, self._left, self._moved = keep, pieces, 0
        self._error: GlakeError | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._family = handle.family()
        if pieces == 0:
            self._over.set()

    def __repr__(self) -> str:
        """Its size, and whether it is over."""
        state = "failed" if self._error else "done" if self._over.is_set() else "started"
        return f"<{type(self).__name__} of {self.bytes} bytes of {self.path}, {state}>"

    def done(self) -> bool:
        """Whether the request is over. wait() raises if it has failed."""
        handle.require_own(self._family)
        return self._over.is_set()

    def _wait(self, timeout: float | None) -> None:
        handle.require_own(self._family)
        limit = timeouts.seconds(timeout)
        if not self._over.wait(limit):
            raise BusyTimeout(f"{self.bytes} bytes of {self.path} are not done in {timeout} s")
        if self._error is not None:  # a new object: the kept one would keep the caller's frames
            raise copy.copy(self._error) from self._error.__cause__

    def progress(self) -> tuple[int, int]:
        """(bytes read or written, bytes of all)."""
        handle.require_own(self._family)
        return self._moved, self.bytes

    @property
    def failed(self) -> bool:
        """Whether a piece has failed. The remaining pieces are then left out."""
        return self._error is not None

    def settle(self, moved: int, error: BaseException | None = None) -> bool:
        """Notes that a piece is over. The engine calls it.

        Args:
            moved: bytes of the piece that are done.
            error: why it failed, if it did.

        Returns:
            True for the last piece: finish() is then due.
        """
        with self._lock:
            self._moved += moved
            self._left -= 1
            if error is not None and self._error is None:
                self._error = self._typed(error)
            return self._left == 0

    def finish(self) -> None:
        """Wakes waiting threads. The engine calls it once everything that the request used is given
        back."""
        self._keep = None
        self._over.set()

    def _typed(self, error: BaseException) -> GlakeError:
        if isinstance(error, GlakeError):
            return error.with_traceback(None)
        return GlakeError(f"{self.path}: {type(error).__name__}: {error}")
