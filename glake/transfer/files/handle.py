"""A read or write of a file that is under way."""

from __future__ import annotations

from glake.errors import FileFailed, GlakeError
from glake.transfer.parted import PieceTransfer


class FileTransfer(PieceTransfer):
    """One read or write of a file. A caller can wait for it or ask about it.

    The object may be dropped. The request goes on, and its memory is kept until it is done. In a
    forked child each method raises Forked.

    Attributes:
        path: the file, as messages name it.
        bytes: of the whole request.
    """

    def wait(self, timeout: float | None = None) -> FileTransfer:
        """Returns itself once all bytes are read or written.

        Args:
            timeout: seconds; None: no end.

        Raises:
            BusyTimeout: not done by then; it goes on.
            FileFailed: the file system refused, or the file ends too early. It is not known which
                bytes of the destination are written.
            GlakeError: what copies between pinned memory and a GPU raise.
        """
        self._wait(timeout)
        return self

    def _typed(self, error: BaseException) -> GlakeError:
        if isinstance(error, OSError) and not isinstance(error, GlakeError):
            return FileFailed(error.errno, error.strerror or str(error), self.path)
        return super()._typed(error)
