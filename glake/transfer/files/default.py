"""The process's file engine, which the first call makes, and the figures of all engines."""

from __future__ import annotations

import functools
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from glake.transfer.files.engine import FileEngine, totals
from glake.transfer.files.handle import FileTransfer

if TYPE_CHECKING:
    from glake.typing import Array


def read_file(path: str | os.PathLike[str] | int, into: Array, offset: int = 0) -> FileTransfer:
    """Starts reading a file into host or GPU memory: FileEngine.read of the process's own engine.

    Args:
        path: the file, or a descriptor of an open one, which may be closed at once.
        into: contiguous; all of it is filled.
        offset: the first byte of the file to read.

    Raises:
        InvalidArgument: memory with gaps or read-only, or a negative offset.
        FileFailed: there is no such file. If the file is too short, the handle raises it.
    """
    return _engine().read(path, into, offset)


def write_file(path: str | os.PathLike[str] | int, data: Array, offset: int = 0) -> FileTransfer:
    """Starts writing host or GPU memory to a file: FileEngine.write of the process's own engine.

    Args:
        path: the file, or a descriptor of one open for writing.
        data: contiguous. It must stay as it is until the handle is done.
        offset: where in the file.

    Raises:
        InvalidArgument: memory with gaps, or a negative offset.
        FileFailed: the file cannot be opened. If the disk is full, the handle raises it.
    """
    return _engine().write(path, data, offset)


def stats() -> dict[str, int]:
    """The figures of all file engines of the process: the fields of FileStats."""
    return asdict(totals())


@functools.cache
def _engine() -> FileEngine:
    return FileEngine()


os.register_at_fork(after_in_child=_engine.cache_clear)  # a child has no threads of the parent
