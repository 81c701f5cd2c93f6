"""A transfer between this node and another, under way."""

from __future__ import annotations

from glake.errors import GlakeError, PeerFailed
from glake.transfer.parted import PieceTransfer


class NodeTransfer(PieceTransfer):
    """One read or write of another node's memory: to wait for, to ask about.

    It may be dropped: the transfer goes on, and its memory is kept until it is done. In a forked
    child each of its methods raises Forked.

    Attributes:
        path: what of which node, as texts name it.
        bytes: of the whole transfer.
    """

    def wait(self, timeout: float | None = None) -> NodeTransfer:
        """Returns itself once all bytes have arrived.

        Args:
            timeout: seconds; None: no end. A peer that is lost or stands still ends the transfer
                in bounded time all the same.

        Raises:
            BusyTimeout: not done by then; it goes on.
            PeerLost: the other node has ended, or no longer answers. Which bytes of the
                destination are written is not known.
            PeerFailed: pieces did not come whole, after retries.
            InvalidArgument: the other node no longer exposes this.
            GlakeError: what copies between pinned memory and a GPU raise.
        """
        self._wait(timeout)
        return self

    def _typed(self, error: BaseException) -> GlakeError:
        if isinstance(error, GlakeError):
            error.__context__ = error.__cause__ = None  # whose frames would keep the engine
            return super()._typed(error)
        return PeerFailed(f"{self.path}: {type(error).__name__}: {error}")
