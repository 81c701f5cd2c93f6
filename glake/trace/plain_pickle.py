"""Reads a pickle of unknown origin: plain values only. It imports nothing and calls nothing."""

from __future__ import annotations

import contextlib
import copyreg
import os
import pickle
import resource
from collections.abc import Iterator
from typing import Any

from glake.errors import RefusedPickle

MAX_FILE = 2 << 30
"""Bytes of the largest pickle that is read. One takes about ten times as much in memory."""

_LEAST_MEMORY = 1 << 30
_MEMORY_PER_BYTE = 64  # an empty dict costs one byte in a pickle and 64 in memory


class _PlainUnpickler(pickle.Unpickler):
    """Builds dicts, lists, tuples, strings and numbers. Anything else in a pickle needs a class or
    function by name, and this unpickler finds none."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it refers to {module}.{name}; only dicts, lists, tuples, strings, numbers, booleans "
            "and None are read, and nothing in it was run"
        )

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to an object outside the file")


@contextlib.contextmanager
def _memory_limit(more: int) -> Iterator[None]:
    """Lets the process grow by `more` bytes of addresses. A pickle of a few bytes can ask for
    terabytes. Here that raises a MemoryError, and does not exhaust the machine."""
    with open("/proc/self/statm", "rb") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + more
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def load(path: str | os.PathLike[str]) -> Any:
    """The plain value (dict, list, tuple, str, bytes, int, float, bool, None) in a pickle.

    During the reading the whole process may grow only by a bounded amount of memory. Raises
    OSError. Raises RefusedPickle (a ValueError) for a pickle that names a class or a function, is
    broken, is larger than 2 GiB, or asks for more memory than a pickle of its length can need.
    """
    size = os.stat(path).st_size
    if size > MAX_FILE:
        raise RefusedPickle(f"{path}: {size:,} bytes; pickles up to {MAX_FILE:,} bytes are read")
    with open(path, "rb") as file:
        try:
            # Without this, objects that the program registered by number and has loaded once would
            # be found.
            copyreg.clear_extension_cache()
            with _memory_limit(_LEAST_MEMORY + _MEMORY_PER_BYTE * size):
                return _PlainUnpickler(file).load()
        except MemoryError as error:
            raise RefusedPickle(f"{path}: it asks for more memory than it can need") from error
        except Exception as error:  # noqa: BLE001 (a broken pickle may raise anything)
            if isinstance(error, OSError):
                raise
            reason = str(error) or type(error).__name__
            raise RefusedPickle(f"{path}: not a pickle of plain values: {reason}") from error
