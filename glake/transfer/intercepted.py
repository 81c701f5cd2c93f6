"""Works with the preloaded library that carries a program's own copies (docs/intercept.md).

A process has one engine. If Python opens an engine, this replaces the library's own engine, and the
library carries copies through it.
"""

from __future__ import annotations

import ctypes
import os


def take_over() -> None:
    """Ends the library's own engine, after its copies under way. It is called before an engine is
    opened."""
    loaded = library()
    if loaded is not None:
        loaded.glake_intercept_yield()


def wait() -> None:
    """Waits for the library's copies. It is called before an engine is closed, because that would
    cancel the copies."""
    loaded = library()
    if loaded is not None:
        loaded.glake_intercept_wait()


def library() -> ctypes.CDLL | None:
    """The loaded library. None if it is not preloaded."""
    if "libglake_intercept.so" not in os.environ.get("LD_PRELOAD", ""):
        return None
    loaded = ctypes.CDLL(None)
    return loaded if hasattr(loaded, "glake_intercept_yield") else None
