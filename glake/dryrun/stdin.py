"""The job's standard input. Each run of the job reads it from its beginning."""

from __future__ import annotations

import os
import select
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_PIECE = 1 << 16  # bytes: no more than a pipe holds


class RepeatedInput:
    """A file or a pipe that several runs read, each from the place where it is now.

    Args:
        handle: its descriptor; default: this process's standard input.
    """

    def __init__(self, handle: int = 0) -> None:
        self._handle: int | None = handle
        self._start: int | None = None  # of a file
        self._kept: IO[bytes] | None = None  # what came out of a pipe
        self._over = False  # nothing more comes out of it
        try:
            kind = os.fstat(handle).st_mode
        except OSError:  # this process has none
            self._handle = None
            return
        if stat.S_ISREG(kind):
            self._start = os.lseek(handle, 0, os.SEEK_CUR)
        elif stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            self._kept = tempfile.TemporaryFile(prefix="glake-")  # noqa: SIM115 (it has no name)

    @contextmanager
    def once(self) -> Iterator[int | None]:
        """The descriptor from which one run reads; None: there is none."""
        if self._handle is not None and self._start is not None:
            os.lseek(self._handle, self._start, os.SEEK_SET)
        if self._kept is None:  # also a terminal, where each run may ask its user
            yield self._handle
            return
        reading, writing = os.pipe()
        over, end = os.pipe()
        pump = threading.Thread(target=self._pump, args=(writing, over), daemon=True)
        pump.start()
        try:
            yield reading
        finally:
            os.close(reading)
            os.close(end)
            pump.join()
            os.close(over)

    def _pump(self, writing: int, over: int) -> None:
        """Writes what earlier runs were given, and then what comes, until `over` is closed."""
        assert self._kept is not None and self._handle is not None
        self._kept.seek(0)
        with suppress(BrokenPipeError), open(writing, "wb", buffering=0) as to:
            while piece := self._kept.read(_PIECE):
                _write(to.fileno(), piece, over)
            while not self._over:
                if over in select.select([self._handle, over], [], [])[0]:
                    return
                piece = os.read(self._handle, _PIECE)
                self._over = not piece
                self._kept.write(piece)
                _write(to.fileno(), piece, over)


def _write(to: int, piece: bytes, over: int) -> None:
    """Writes all of it, unless `over` is closed before. A write of so few bytes never waits once
    the pipe takes some."""
    os.set_blocking(to, False)
    while piece:
        if over in select.select([over], [to], [])[0]:
            return
        with suppress(BlockingIOError):
            piece = piece[os.write(to, piece) :]
