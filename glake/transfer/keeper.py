"""Keeps what copies under way use alive when nobody holds their handles any more."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import Any

from glake import _C
from glake.errors import GlakeError

_SLICE_NS = 50_000_000

Held = tuple[tuple[int, ...], Any]  # ids, and what they need


class Keeper:
    """A thread that sleeps until a handle is dropped before its copy is done."""

    def __init__(self) -> None:
        """Starts nothing."""
        self._dropped: queue.SimpleQueue[Held] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Has the thread run: not in take(), where no thread may be started."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="glake-keeper", daemon=True
                    )
                    self._thread.start()

    def take(self, ids: tuple[int, ...], keep: Any) -> None:
        """Keeps `keep` until the copies are done. May be called by a finaliser, on any thread."""
        self._dropped.put((ids, keep))

    def _run(self) -> None:
        held: list[Held] = []
        while True:
            if not held:
                held.append(self._dropped.get())
            while not self._dropped.empty():
                held.append(self._dropped.get())
            _over(held[0][0][0], wait=True)
            held = [each for each in held if not _released(each)]


def _over(copy: int, wait: bool = False) -> bool:
    """Whether it is done, has failed, or is of an engine that is closed."""
    try:
        return _C.copy_wait(copy, _SLICE_NS) if wait else _C.copy_done(copy)
    except GlakeError:
        return True


def _released(held: Held) -> bool:
    ids, _ = held
    if not all(_over(each) for each in ids):
        return False
    release(ids)
    return True


def release(ids: tuple[int, ...]) -> None:
    """Forgets copies that are done; those of a closed engine are forgotten already."""
    for each in ids:
        with contextlib.suppress(GlakeError):
            _C.copy_release(each)


keeper = Keeper()


def _renew() -> None:
    global keeper
    keeper = Keeper()  # the parent's copies, and its thread, are not the child's


os.register_at_fork(after_in_child=_renew)
