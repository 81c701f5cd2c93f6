"""A transfer between this node and another one that is under way."""

from __future__ import annotations

from glake.errors import GlakeError, PeerFailed
from glake.transfer.parted import PieceTransfer


class NodeTransfer(PieceTransfer):
    """One read or write of another node's memory. A caller can wait for it or ask about it.

    The object may be dropped. The transfer goes on, and its memory is kept until it is done. In a
    forked child each method raises Forked.

    Attributes:
        path: the name of the exposed memory and the address of its node, as messages show them.
        bytes: the size of the whole transfer.
    """

    def wait(self, timeout: float | None = None) -> NodeTransfer:
        """Returns itself once all bytes have arrived.

        Args:
            timeout: seconds; None: no limit. The transfer itself ends in bounded time, even if the
                peer is lost or stands still.

        Raises:
            BusyTimeout: the transfer is not done by then. It goes on.
            PeerLost: the other node has ended, or no longer answers. It is not known which bytes
                of the destination are written.
            PeerFailed: some pieces did not arrive intact, even after retries.
            InvalidArgument: the other node no longer exposes this memory.
            GlakeError: a copy between pinned memory and a GPU failed.
        """
        self._wait(timeout)
        return self

    def _typed(self, error: BaseException) -> GlakeError:
        if isinstance(error, GlakeError):
            error.__context__ = error.__cause__ = None  # their frames would keep the engine alive
            return super()._typed(error)
        return PeerFailed(f"{self.path}: {type(error).__name__}: {error}")
