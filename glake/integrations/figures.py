"""The figures in glake.stats() of each hook: whether it is installed, and what it has done."""

from __future__ import annotations

import threading
from collections import defaultdict

from glake.config import INTEGRATIONS

_counts: defaultdict[str, int] = defaultdict(int)
_lock = threading.Lock()


def add(hook: str, figure: str, amount: int) -> None:
    """Adds to the figure "glake.integrations.HOOK.FIGURE"."""
    with _lock:
        _counts[f"glake.integrations.{hook}.{figure}"] += amount


def peak(hook: str, figure: str, most: str) -> None:
    """Sets the figure `most` to what `figure` is now, if that is more."""
    with _lock:
        now, name = _counts[f"glake.integrations.{hook}.{figure}"], f"glake.integrations.{hook}."
        _counts[name + most] = max(_counts[name + most], now)


def installed(hook: str, is_it: bool) -> None:
    """Sets "glake.integrations.HOOK.installed" to 1 or 0."""
    with _lock:
        _counts[f"glake.integrations.{hook}.installed"] = int(is_it)


def told() -> dict[str, int]:
    """Every figure of every hook. It is 0 for hooks that were never installed in this process."""
    with _lock:
        return {f"glake.integrations.{hook}.installed": 0 for hook in INTEGRATIONS} | _counts
