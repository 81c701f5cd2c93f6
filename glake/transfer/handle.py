"""A copy under way."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from glake import _C
from glake.errors import InvalidArgument

_FOREVER = (1 << 64) - 1

# What copies under way need alive, by copy: a handle that is dropped does not end its copy.
_kept: dict[int, Any] = {}


@dataclass(frozen=True)
class Result:
    """How a copy went. `paths`: of each its name, bytes, chunks and GB/s as the engine counted."""

    bytes: int
    seconds: float
    paths: tuple[dict[str, Any], ...]
    parts: tuple[dict[str, Any], ...] = field(repr=False, default=())  # the engine's own words

    @property
    def rate(self) -> float:
        """GB/s over all paths; 0 for a copy the engine did not time."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


class Transfer:
    """One call's copies: to wait for, to ask about, to `await`.

    It may be dropped: the copy goes on, and its memory is kept alive until it is done.
    """

    def __init__(self, ids: Sequence[int], size: int, keep: Any) -> None:
        """Takes over the engine's `ids`; `keep` is what must live until they are done."""
        reap()
        self._ids = tuple(ids)
        self.bytes = size
        for each in self._ids:
            _kept[each] = keep

    def __repr__(self) -> str:
        """Its size and whether it is done."""
        return f"<Transfer of {self.bytes} bytes, {'done' if self.done() else 'under way'}>"

    def done(self) -> bool:
        """Whether all its bytes have arrived, or it has failed: then wait() raises."""
        return all(_C.copy_done(each) for each in self._ids)

    def wait(self, timeout: float | None = None) -> Transfer:
        """Returns itself once the copy is done. `timeout` in seconds.

        TimeoutError if it is not by then; CopyFailed, CopyCancelled name the destination's state.
        """
        if timeout is not None and not timeout >= 0:
            raise InvalidArgument(f"timeout {timeout!r}: seconds from 0 on, or None for no end")
        limit = _FOREVER if timeout is None else min(int(timeout * 1e9), _FOREVER - 1)
        for each in self._ids:
            if not _C.copy_wait(each, limit):
                raise TimeoutError(f"the copy of {self.bytes} bytes is not done in {timeout} s")
            _kept.pop(each, None)
        return self

    def __await__(self) -> Generator[Any, None, Transfer]:
        """Waits on a thread of the running loop's executor."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self.wait).__await__()

    def result(self, timeout: float | None = None) -> Result:
        """Waits, then says how it went."""
        self.wait(timeout)
        told = tuple(_C.copy_result(each) for each in self._ids)
        return Result(
            bytes=self.bytes,
            seconds=max((float(one.get("ns", 0)) for one in told), default=0.0) / 1e9,
            paths=tuple(path for one in told for path in one.get("paths", ())),
            parts=told,
        )

    def stream_wait(self, stream: Any, device: int | None = None) -> None:
        """Later work on `stream` (a torch or CuPy stream, or a handle with `device`) waits for it."""
        handle, gpu = stream_of(stream, device)
        for each in self._ids:
            _C.copy_stream_wait(each, gpu, handle)

    def cancel(self) -> None:
        """Takes no more chunks. wait() then raises CopyCancelled, unless all had been taken."""
        for each in self._ids:
            _C.copy_cancel(each)

    def progress(self) -> tuple[int, int]:
        """(bytes that have arrived, bytes of all)."""
        arrived = sum(_C.copy_progress(each)[0] for each in self._ids)
        return (self.bytes if self.done() else arrived), self.bytes

    def __del__(self) -> None:
        """Gives the ids back; what is under way goes on."""
        for each in getattr(self, "_ids", ()):
            _dropped.append(each)


_dropped: list[int] = []


def reap() -> None:
    """Forgets the copies that nobody holds and that are done."""
    for each in [_dropped.pop() for _ in range(len(_dropped))]:
        if each in _kept and not _C.copy_done(each):
            _dropped.append(each)
            continue
        _kept.pop(each, None)
        _C.copy_release(each)


def stream_of(stream: Any, device: int | None = None) -> tuple[int, int]:
    """(handle, GPU) of a torch or CuPy stream, or of a plain handle and its `device`."""
    for name in ("cuda_stream", "ptr"):  # torch's, CuPy's
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            owner = getattr(stream, "device_index", getattr(stream, "device_id", device))
            gpu = device if device is not None else owner
            return handle, int(gpu) if gpu is not None and gpu >= 0 else 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        if device is None:
            raise InvalidArgument(f"stream {stream:#x}: say which GPU it is of (device=...)")
        return stream, device
    raise InvalidArgument(f"{stream!r} is no stream: pass a torch or CuPy stream, or its handle")
