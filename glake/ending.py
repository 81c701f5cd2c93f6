"""How commands that started other processes end on a signal."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ended_tidily() -> Iterator[None]:
    """Ends the command on SIGTERM and SIGHUP as Ctrl-C does: what it started ends first. The exit
    status is 128 plus the signal's number."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is signal.SIG_DFL:
                before[each] = signal.signal(each, end)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
