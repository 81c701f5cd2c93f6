"""Figures of glake's allocator: statistics, steps, recorded traces."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from glake import _C, arguments, files
from glake.arguments import device_number
from glake.errors import GlakeError, TransferClosed

if TYPE_CHECKING:
    from glake.typing import Device


def stats(device: Device = 0) -> dict[str, int]:
    """The device's statistics: PyTorch's names (torch.cuda.memory_stats) and glake's own.

    Five groups are of the whole process, whatever the device. `glake.host.` is about pinned memory
    of glake's pool. `glake.deduplication.` is about what deduplicate() has shared.
    `glake.transfer.` and `glake.files.` are about the engines' copies, reads and writes, and are 0
    while there is no engine. `glake.integrations.` says what each hook has done.

    Args:
        device: 0, "cuda:0" or a torch.device.

    Returns:
        Bytes and counts by name.

    Raises:
        GlakeError: there is no such device or no driver, or this is a forked child.
    """
    from glake.allocator import deduplication
    from glake.transfer import files

    found = dict(_C.stats(device_number(device)))
    found |= {f"glake.host.{name}": value for name, value in _C.host_stats().items()}
    found |= {f"glake.transfer.{name}": value for name, value in _copied().items()}
    shared = deduplication.totals()
    found |= {f"glake.deduplication.{name}": value for name, value in shared.items()}
    found |= {f"glake.files.{name}": value for name, value in files.stats().items()}
    for source in _sources:
        found |= source()
    return found


def also(source: Callable[[], dict[str, int]]) -> None:
    """Makes stats() include these figures too."""
    _sources.append(source)


_sources: list[Callable[[], dict[str, int]]] = []
_COPIES = ("transfers", "plain_copies", "bytes", "plain_bytes", "failed", "resent", "running")


def _copied() -> dict[str, int]:
    try:
        told = cast("dict[str, int]", _C.transfer_stats())
    except TransferClosed:  # no copy was requested yet
        return dict.fromkeys(_COPIES, 0)
    return {name: told[name] for name in _COPIES}


def step(device: Device = 0) -> None:
    """Marks the start of the next training step, in the statistics and in the recorded trace.

    Until the first call, every step of the program's first optimizer marks one.

    Args:
        device: 0, "cuda:0" or a torch.device.

    Raises:
        GlakeError: as of stats().
    """
    _optimizer_steps.by_hand = True
    _C.mark_step(device_number(device))


class TraceRecording:
    """A recording that glake.record_trace() began. As a context manager it ends the recording."""

    _under_way: Callable[[], TraceRecording | None] = staticmethod(lambda: None)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = arguments.c_string("a trace's path", arguments.path("a trace", path))
        self.path = Path(name)
        try:
            open(name, "ab").close()
        except OSError as error:  # the C interface would only say that the option is invalid
            raise files.failed(error, path) from None
        _C.trace(name)
        TraceRecording._under_way = weakref.ref(self)

    def __enter__(self) -> TraceRecording:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the recording. The file is complete then. Does nothing if a later recording has
        ended this one.

        Raises:
            FileFailed: the file is not whole, since a write to it failed. It ends there, and so
                does the recording.
            GlakeError: a forked child.
        """
        if TraceRecording._under_way() is self:
            _C.trace(None)


def record_trace(path: str | os.PathLike[str]) -> TraceRecording:
    """Records every later allocation and free, of all devices, in a file.

    A recording that is under way ends first. The new one ends with the block of `with
    glake.record_trace("job.trace"):`, by stop() of the returned object, or with the process.

    Args:
        path: the path of the trace (docs/trace-format.md).

    Raises:
        WrongType: `path` is not a path.
        InvalidArgument: `path` has a NUL, or UTF-8 cannot encode it.
        FileFailed: the file cannot be written; or that of the recording under way is not whole,
            since a write to it failed. Neither records then.
        GlakeError: this is a forked child.
    """
    return TraceRecording(path)


class _OptimizerSteps:
    """Marks steps for programs that do not call step()."""

    def __init__(self) -> None:
        self.by_hand = False
        self.first: Callable[[], Any] = lambda: None

    def after(self, optimizer: Any, *_: Any) -> None:
        import torch

        if self.by_hand or torch.compiler.is_compiling():
            return
        if self.first() is None:
            self.first = weakref.ref(optimizer)
        if self.first() is optimizer:
            try:
                _C.mark_step(torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
            except GlakeError:  # in a forked child, or without a driver: training goes on
                self.by_hand = True


_optimizer_steps = _OptimizerSteps()


def mark_optimizer_steps() -> None:
    """Marks a step after every step of the program's first optimizer, until step() is called."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_optimizer_steps.after)
