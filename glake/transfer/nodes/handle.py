"""A transfer between this node and another one that is under way."""

from __future__ import annotations

from glake.errors import GlakeError, PeerFailed
from glake.transfer.parted import PieceTransfer


class NodeTransfer(PieceTransfer):
    """One read or write of another node's memory, which a caller can wait for or ask about.

    A caller may drop it: the transfer goes on, and its memory is kept until it is done. In a forked
    child each of its methods raises Forked.

    Attributes:
        path: the name of the exposed memory and the address of its node, as messages show them.
        bytes: the size of the whole transfer.
    """

    def wait(self, timeout: float | None = None) -> NodeTransfer:
        """Returns itself once all bytes have arrived.

        Args:
            timeout: how many seconds to wait; None: as long as it takes. If the peer is lost or
                stands still, the transfer ends in bounded time even so.

        Raises:
            BusyTimeout: the transfer is not done in this time; it goes on.
            PeerLost: the other node has ended, or no longer answers. Which bytes of the
                destination are written is not known.
            PeerFailed: some pieces did not arrive intact, even after retries.
            InvalidArgument: the other node no longer exposes this memory.
            GlakeError: a copy between pinned memory and a GPU failed.
        """
        self._wait(timeout)
        return self

    def _typed(self, error: BaseException) -> GlakeError:
        if isinstance(error, GlakeError):
            error.__context__ = error.__cause__ = None  # whose frames would keep the engine
            return super()._typed(error)
        return PeerFailed(f"{self.path}: {type(error).__name__}: {error}")
