"""Watches copies under way whose handles nobody holds, or whose end requires an action."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from glake import _C
from glake.errors import GlakeError

_SLICE_NS = 50_000_000


class Watched(Protocol):
    """What the watcher keeps until the copies are over."""

    def over(self, wait: bool) -> bool:
        """Whether the item is over. With `wait` the answer may take a short time. It never
        raises."""
        ...


class Dropped:
    """Copies whose handle is gone, and the objects that they need."""

    def __init__(self, ids: tuple[int, ...], keep: Any) -> None:
        """Keeps `keep`."""
        self._ids, self._keep = ids, keep

    def over(self, wait: bool) -> bool:
        """Whether the copies are done or have failed. If so, releases their ids."""
        if not all(_over(each, wait) for each in self._ids) or unsettled(self._ids):
            return False
        keep_until_the_end(self._keep)
        release(self._ids)
        return True


class Unfinished:
    """Copies that failed. Some driver copies were given up, and may still read and write."""

    def __init__(self, ids: tuple[int, ...], keep: Any) -> None:
        """Keeps `keep`."""
        self._ids, self._keep = ids, keep

    def over(self, wait: bool) -> bool:
        """Whether the driver copies that were given up are done."""
        if unsettled(self._ids):
            if wait:
                time.sleep(_SLICE_NS / 1e9)
            return False
        keep_until_the_end(self._keep)
        return True


class CompletionWatcher:
    """A thread that sleeps until it is given something to watch."""

    def __init__(self) -> None:
        """Starts nothing."""
        self._given: queue.SimpleQueue[Watched] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, if it is not running.

        take() cannot do this. A finaliser may call take(), and a finaliser may not start a thread.
        """
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="glake-watcher", daemon=True
                    )
                    self._thread.start()

    def take(self, item: Watched) -> None:
        """Keeps the item until it is over. A finaliser may call this on any thread."""
        self._given.put(item)

    def _run(self) -> None:
        held: collections.deque[Watched] = collections.deque()
        while True:
            held.append(self._given.get())
            while held:
                # Most items end in the order in which they came. If the first one is late, the
                # others are asked too.
                if held[0].over(wait=True):
                    held.popleft()
                else:
                    held = collections.deque(each for each in held if not each.over(wait=False))
                while not self._given.empty():
                    held.append(self._given.get())


def _over(copy: int, wait: bool) -> bool:
    try:
        return _C.copy_wait(copy, _SLICE_NS) if wait else _C.copy_done(copy)
    except GlakeError:  # the copy has failed, or its engine ends
        return True


def unsettled(ids: tuple[int, ...]) -> bool:
    """Whether a copy, done or failed, may still use its memory."""
    for each in ids:
        with contextlib.suppress(GlakeError):  # the copy's engine ends
            if not _C.copy_settled(each):
                return True
    return False


# While the engine ends nobody can ask about a copy, and some are still under way.
_ending = 0
_until_the_end: list[Any] = []


def keep_until_the_end(keep: Any) -> None:
    """While the engine ends, keeps the objects that copies may still use."""
    if _ending:
        _until_the_end.append(keep)


@contextlib.contextmanager
def engine_ends() -> Iterator[None]:
    """A context in which the engine is closed. If closing fails, the objects stay kept."""
    global _ending
    _ending += 1
    yield
    _ending = 0
    _until_the_end.clear()


def release(ids: tuple[int, ...]) -> None:
    """Releases the ids of copies that are done. A closed engine has forgotten its ids already."""
    for each in ids:
        try:  # noqa: SIM105 - suppress() would take longer than the call
            _C.copy_release(each)
        except GlakeError:
            pass


watcher = CompletionWatcher()


def _renew() -> None:
    global watcher, _ending
    _ending = 0
    watcher = CompletionWatcher()  # a child has neither the parent's copies nor its thread


os.register_at_fork(after_in_child=_renew)
