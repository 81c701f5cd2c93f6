"""The library that carries a program's own copies (docs/intercept.md), where it is preloaded.

A process has one engine: one that Python opens takes the place of the library's, which then carries
copies by that.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glake.transfer.topology import Topology


def take_over() -> None:
    """Before an engine is opened: copies under way are waited for, and the library's own ends."""
    library = _library()
    if library is not None:
        library.glake_intercept_yield()


def wait() -> None:
    """Before an engine is closed: its end would cancel the copies that it carries for others."""
    library = _library()
    if library is not None:
        library.glake_intercept_wait()


def share() -> None:
    """Where ranks share the node, opens the engine that asks the relay service, once a copy is to
    be carried: the library, which has no Python, cannot ask. Touches no device before."""
    from glake.transfer.relay import modes

    library = _library()
    if library is not None and modes.chosen(None) == "lent":
        threading.Thread(target=_open, args=(library,), name="glake intercept", daemon=True).start()


def _open(library: ctypes.CDLL) -> None:
    from glake.errors import GlakeError
    from glake.transfer import engine

    library.glake_intercept_await()
    try:
        engine.open_over(_handed_over())
    except GlakeError as error:  # nobody waits for this thread
        sys.stderr.write(f"glake: intercept: GPUs of other ranks are not used: {error}\n")


def _handed_over() -> Topology | str | None:
    """The topology that `glake run` found; None: this process's own way to one."""
    text = os.environ.get("GLAKE_INTERCEPT_TOPOLOGY", "")
    if not text.startswith("{"):
        return text or None
    from glake.platform_file import parse
    from glake.transfer.topology import Topology

    rows = json.loads(text)
    name = next(each for each in rows if each[0] != "_" and each != "per_copy_us")
    row = (
        {"per_copy_us": rows["per_copy_us"], **rows[name]} if "per_copy_us" in rows else rows[name]
    )
    return Topology(name, parse(row, name), "glake run --intercept")


def _library() -> ctypes.CDLL | None:
    if "libglake_intercept.so" not in os.environ.get("LD_PRELOAD", ""):
        return None
    loaded = ctypes.CDLL(None)
    return loaded if hasattr(loaded, "glake_intercept_yield") else None
