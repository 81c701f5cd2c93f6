"""The library that carries a program's own copies (docs/intercept.md), if it is preloaded.

A process has one engine: one that Python opens takes the place of the library's, which then carries
copies by that.
"""

from __future__ import annotations

import ctypes
import os


def take_over() -> None:
    """Called before an engine is opened. Waits for copies under way, and ends the library's own
    engine."""
    loaded = library()
    if loaded is not None:
        loaded.glake_intercept_yield()


def wait() -> None:
    """Called before an engine is closed, because its end would cancel the copies that it
    carries."""
    loaded = library()
    if loaded is not None:
        loaded.glake_intercept_wait()


def library() -> ctypes.CDLL | None:
    """The loaded library. None if it is not preloaded."""
    if "libglake_intercept.so" not in os.environ.get("LD_PRELOAD", ""):
        return None
    loaded = ctypes.CDLL(None)
    return loaded if hasattr(loaded, "glake_intercept_yield") else None
