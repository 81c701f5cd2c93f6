"""The process's file engine, which the first call makes, and what all engines have done."""

from __future__ import annotations

import functools
import os
from dataclasses import asdict
from typing import Any

from glake.transfer.files.engine import FileEngine, totals
from glake.transfer.files.handle import FileTransfer


def read_file(path: str | os.PathLike[str] | int, into: Any, offset: int = 0) -> FileTransfer:
    """Starts reading a file into host or GPU memory: FileEngine.read."""
    return _engine().read(path, into, offset)


def write_file(path: str | os.PathLike[str] | int, data: Any, offset: int = 0) -> FileTransfer:
    """Starts writing host or GPU memory to a file: FileEngine.write."""
    return _engine().write(path, data, offset)


def stats() -> dict[str, int]:
    """What all file engines of the process have done: the fields of FileStats."""
    return asdict(totals())


@functools.cache
def _engine() -> FileEngine:
    return FileEngine()


os.register_at_fork(after_in_child=_engine.cache_clear)  # the parent's threads are not the child's
