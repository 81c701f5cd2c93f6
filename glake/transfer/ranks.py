"""Ranks share their node, also where the preloaded library makes their copies
(docs/intercept.md)."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from typing import TYPE_CHECKING

from glake.transfer import intercepted
from glake.transfer.relay import modes

if TYPE_CHECKING:
    from glake.transfer.topology import Topology


def share() -> None:
    """If ranks share the node, starts a thread that waits for the library's first copy, and then
    opens an engine. The engine asks the relay service, which the library cannot do without Python.
    No device is touched before that copy."""
    loaded = intercepted.library()
    if loaded is not None and modes.chosen(None) == "lent":
        threading.Thread(target=_open, args=(loaded,), name="glake intercept", daemon=True).start()


def _open(loaded: ctypes.CDLL) -> None:
    from glake.errors import GlakeError
    from glake.transfer import engine

    loaded.glake_intercept_await()
    try:
        engine.open_over(_handed_over())
    except GlakeError as error:  # nobody waits for this thread, so it can only warn
        sys.stderr.write(f"glake: intercept: GPUs of other ranks are not used: {error}\n")


def _handed_over() -> Topology | str | None:
    """The topology that `glake run` found. None: this process must find one itself."""
    text = os.environ.get("GLAKE_INTERCEPT_TOPOLOGY", "")
    if not text.startswith("{"):
        return text or None
    from glake.platform_file import parse
    from glake.transfer.topology import Topology

    rows = json.loads(text)
    name = next(each for each in rows if each[0] != "_" and each != "per_copy_us")
    shared = {key: rows[key] for key in ("per_copy_us",) if key in rows}
    return Topology(name, parse(shared | rows[name], name), "glake run --intercept")
