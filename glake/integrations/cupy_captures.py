"""CuPy's graph captures. CuPy's streams may end at any time, so glake asks about one only in calls
that name it. It is told here when a capture is over; else the streams would count as captured, and
their memory would serve no other stream."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

from glake import _C
from glake.integrations.replacing import replace


class Captures:
    """The captures under way, and the streams on which memory was allocated meanwhile: streams that
    have joined a capture are captured too."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer that allocates may run inside
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._streams: dict[tuple[int, int], Any] = {}  # held, so that they can be asked about

    def watch(self, made: contextlib.ExitStack, stream: type) -> None:
        """Follows the captures of CuPy's class of streams, until `made` is closed."""
        owner: Any = next((c for c in stream.__mro__ if "end_capture" in vars(c)), stream)
        begin, end = owner.begin_capture, owner.end_capture

        def begin_capture(self: Any, *args: Any, **named: Any) -> Any:
            result = begin(self, *args, **named)
            with captures._lock:
                captures._open.add(self)
            return result

        def end_capture(self: Any) -> Any:
            try:
                return end(self)
            finally:
                captures._ended(self)

        captures = self
        replace(made, owner, "begin_capture", begin_capture)
        replace(made, owner, "end_capture", end_capture)

    def allocating(self, device: int, stream: Any) -> None:
        """Memory is allocated on the stream."""
        if self._open:
            with self._lock:
                self._streams[device, stream.ptr] = stream

    def _ended(self, stream: Any) -> None:
        with self._lock:
            self._open.discard(stream)
            named = list(self._streams.items())
            if not self._open:
                self._streams.clear()
        for (device, handle), _ in named:
            _C.stream_may_end(device, handle)
