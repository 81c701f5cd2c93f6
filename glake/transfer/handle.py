"""A copy under way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from glake import _C, arguments
from glake.errors import (
    BusyTimeout,
    Forked,
    GlakeError,
    InvalidArgument,
    InvalidDevice,
    TransferClosed,
    WrongType,
)
from glake.transfer import completion_watcher, timeouts

if TYPE_CHECKING:
    from glake.typing import Device, PartResult, PathResult, Stream

_SLICE_NS = 200_000_000  # waits are this short, so that signals are handled in between
_CLOSING_NS = 5_000_000_000

_family = object()  # marks this process: a child has another one
_live: dict[int, weakref.ref[Transfer]] = {}  # by id(); dict operations need no lock


def live() -> list[Transfer]:
    """The handles that somebody holds."""
    found = (reference() for reference in list(_live.values()))
    return [transfer for transfer in found if transfer is not None]


def family() -> object:
    """The mark of this process, which a handle keeps."""
    return _family


def require_own(made_by: object) -> None:
    """Raises Forked if a handle was made before this process was forked."""
    if made_by is not _family:
        raise Forked(
            "this handle belongs to the parent process: a forked child has no engine and no copies"
        )


def _forget() -> None:
    global _live, _family
    _live, _family = {}, object()  # a child has no handles of its parent


os.register_at_fork(after_in_child=_forget)


@dataclass(frozen=True)
class Result:
    """The result of a copy.

    Attributes:
        bytes: of the copy.
        seconds: how long it took, of several transfers the longest; 0 for a plain copy, which the
            engine does not time.
        paths: the name, bytes, chunks, planned and measured GB/s of each path; empty for a plain
            copy.
        made_contiguous: whether the source was first made contiguous on its device.
        parts: what the engine reports of each of its transfers.
    """

    bytes: int
    seconds: float
    paths: tuple[PathResult, ...]
    made_contiguous: bool = False
    parts: tuple[PartResult, ...] = field(repr=False, default=())

    @property
    def rate(self) -> float:
        """GB/s (1e9 bytes a second) over all paths. It is 0 for a plain copy, and for several
        transfers, which need not begin together: `parts` has the rate of each."""
        return self.bytes / self.seconds / 1e9 if self.seconds and len(self.parts) == 1 else 0.0


class Transfer:
    """The copies of one call. A caller can wait for them, ask about them, and `await` them.

    The object may be dropped. The copy goes on, and its memory is kept alive until it is done. In a
    forked child each method raises Forked.

    Attributes:
        bytes: of all its copies.
        ordered: whether streams wait for it.
        made_contiguous: whether a source was first made contiguous on its own device.
    """

    def __init__(
        self,
        ids: Sequence[int],
        size: int,
        keep: object,
        ordered: bool = False,
        made_contiguous: bool = False,
    ) -> None:
        """Takes over the engine's `ids` of copies. `keep` must live until these are done. Raises
        WrongType for anything but a list or a tuple."""
        if type(ids) is not list and type(ids) is not tuple:
            raise WrongType(f"a Transfer is what copy() returns, and not made of {ids!r}")
        self._ids = tuple(ids)
        self._keep = keep
        self._over = not self._ids
        self._settling = threading.RLock()
        self._error: GlakeError | None = None
        self._told: tuple[PartResult, ...] | None = None
        self._family = _family
        self.bytes, self.ordered = size, ordered  # whether streams wait for it
        self.made_contiguous = made_contiguous
        if self._ids:
            completion_watcher.watcher.start()
            _live[id(self)] = weakref.ref(self)

    def __repr__(self) -> str:
        """Its size, and whether it is over."""
        state = "failed" if self._error else "done" if self._over else "started"
        return f"<Transfer of {self.bytes} bytes, {state}>"

    def done(self) -> bool:
        """Whether all bytes have arrived, or the copy has failed. wait() raises if it has
        failed."""
        require_own(self._family)
        return self._over or all(_C.copy_done(each) for each in self._ids)

    def wait(self, timeout: float | None = None) -> Transfer:
        """Returns itself once the copy is done.

        Args:
            timeout: seconds; None and infinity: no limit.

        Raises:
            BusyTimeout: the copy is not done by then. It goes on.
            CopyFailed: no path is left; the text says which bytes of the destination are written.
            CopyCancelled: it was cancelled; the text says the same.
            TransferClosed: the engine was closed before the copy was done.
            InvalidArgument: no such timeout.
        """
        require_own(self._family)
        timeout = timeouts.seconds(timeout)
        if not self._over:
            end = None if timeout is None else time.monotonic() + timeout
            error = None
            for each in self._ids:
                try:
                    self._wait_one(each, end, timeout)
                except BusyTimeout:
                    raise
                except GlakeError as failure:
                    error = error or failure
            self._settle(error)
        if self._error is not None:  # a new object: the kept one would keep the caller's arrays
            raise type(self._error)(*self._error.args)
        return self

    def _wait_one(self, copy: int, end: float | None, timeout: float | None) -> None:
        while True:
            left = _SLICE_NS if end is None else int((end - time.monotonic()) * 1e9)
            if _C.copy_wait(copy, max(0, min(left, _SLICE_NS))):
                return
            if left <= 0:
                raise BusyTimeout(f"the copy of {self.bytes} bytes is not done in {timeout} s")

    def _settle(self, error: GlakeError | None) -> None:
        # Once a thread sees that the copy is over, the memory that it kept must be free.
        with self._settling:
            if self._over:
                return
            completion_watcher.keep_until_the_end(self._keep)
            if error is not None and completion_watcher.unsettled(self._ids):
                completion_watcher.watcher.take(
                    completion_watcher.Unfinished(self._ids, self._keep)
                )
            self._error = None if error is None else error.with_traceback(None)
            self._keep = None
            self._over = True

    def close(self) -> None:
        """Cancels the copies and keeps their result. The engine calls it before it ends."""
        if self._over:
            if self._told is None and self._error is None:
                with contextlib.suppress(GlakeError):  # result() then says what is wrong
                    self._told = self._results()
            return
        self.cancel()
        error: GlakeError | None = None
        try:
            for each in self._ids:
                if not _C.copy_wait(each, _CLOSING_NS):
                    error = TransferClosed(
                        "the engine was closed, or an end of it was tried; this copy goes on in "
                        "its stream"
                    )
            self._told = self._results()
        except GlakeError as failure:
            error = failure
        self._settle(error)

    def _results(self) -> tuple[PartResult, ...]:
        return tuple(_C.copy_result(each) for each in self._ids)

    def __await__(self) -> Generator[object, None, Transfer]:
        """Waits on a thread of the running loop's executor."""
        require_own(self._family)
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self.wait).__await__()

    def result(self, timeout: float | None = None) -> Result:
        """Waits, and then returns the result of the copy.

        Args:
            timeout: as of wait().

        Raises:
            GlakeError: as of wait().
        """
        self.wait(timeout)
        if self._told is None:
            self._told = self._results()
        return Result(
            bytes=self.bytes,
            seconds=max((float(one.get("time_ns", 0)) for one in self._told), default=0.0) / 1e9,
            paths=tuple(path for one in self._told for path in one["paths"]),
            made_contiguous=self.made_contiguous,
            parts=self._told,
        )

    def stream_wait(
        self, stream: Stream | tuple[Device, int], device: Device | None = None
    ) -> None:
        """Makes later work on a stream wait for the copy, however it ends.

        Args:
            stream: a torch or CuPy stream, (GPU, handle), or a handle with `device`.
            device: the GPU of a handle: 0, "cuda:0" or a torch.device.

        Raises:
            InvalidArgument: that is no stream.
            InvalidDevice: that is no GPU.
            DriverError: the driver refused a call.
        """
        require_own(self._family)
        gpu, handle = stream_of(stream, device)
        for each in self._ids if not self._over else ():
            _C.copy_stream_wait(each, gpu, handle)

    def cancel(self) -> None:
        """Stops taking chunks. A plain copy goes on.

        wait() then raises CopyCancelled, unless all chunks had been taken.
        """
        require_own(self._family)
        for each in self._ids if not self._over else ():
            _C.copy_cancel(each)

    def progress(self) -> tuple[int, int]:
        """(bytes that have arrived, bytes of all).

        Raises:
            TransferClosed, InvalidArgument: the copy was not done when its engine was closed.
        """
        require_own(self._family)
        if self._over and self._error is None:
            return self.bytes, self.bytes
        return sum(_C.copy_progress(each)[0] for each in self._ids), self.bytes

    # At exit the module's names may be None when the last handles go. A default argument is still
    # there.
    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Gives the ids back. Copies under way go on."""
        if not getattr(self, "_ids", ()) or finalizing() or self._family is not _family:
            return
        _live.pop(id(self), None)
        if self._over or self._keep is None:
            completion_watcher.release(self._ids)  # nothing must be kept any longer
        else:
            completion_watcher.watcher.take(completion_watcher.Dropped(self._ids, self._keep))


def stream_of(stream: Any, device: Device | None = None) -> tuple[int, int]:
    """(GPU, handle) of a torch or CuPy stream, of such a pair, or of a handle and its `device`."""
    if isinstance(stream, tuple) and len(stream) == 2:
        handle = arguments.whole(stream[1])
        try:
            if handle is not None:
                return arguments.device_number(stream[0]), handle
        except InvalidDevice:
            pass
        raise InvalidArgument(
            f"{stream!r} is no stream: the pair is (GPU, handle), such as (0, 1234) or "
            '("cuda:0", 1234)'
        )
    given = None if device is None else arguments.device_number(device)
    for name in ("cuda_stream", "ptr"):  # torch's, CuPy's
        handle = arguments.whole(getattr(stream, name, None))
        if handle is not None:
            own = getattr(stream, "device_index", getattr(stream, "device_id", None))
            gpu = own if isinstance(own, int) and own >= 0 else given
            return (gpu if gpu is not None else 0), handle
    handle = arguments.whole(stream)
    if handle is None:
        raise InvalidArgument(
            f"{stream!r} is no stream: pass a torch or CuPy stream, or its handle"
        )
    if given is None:
        raise InvalidArgument(f"stream {handle:#x}: say whose it is, as (GPU, handle)")
    return given, handle
