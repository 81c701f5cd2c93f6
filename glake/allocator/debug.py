"""The debug modes (option `debug`, docs/debugging.md) and tags."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from glake import _C
from glake.arguments import device_number
from glake.errors import Corrupted, GlakeError, InvalidArgument, WrongType

if TYPE_CHECKING:
    import torch


def check(device: int | str | torch.device = 0) -> None:
    """Waits for the device, then checks the allocator's books and all that `debug` guards. Slow.

    Raises Corrupted, which names the damaged blocks; Internal for a broken invariant; or another
    GlakeError: no such device, no driver, a forked child.
    """
    _C.check(device_number(device))


def findings() -> list[str]:
    """What the debug modes have found and nobody has read yet, a text each. Waits for nothing.

    Raises a GlakeError in a forked child.
    """
    text = _C.findings()
    return text.split("\n\n") if text else []


_now = threading.local()


@contextlib.contextmanager
def tag(name: str) -> Iterator[None]:
    """Names the blocks the calling thread allocates inside a `with`, or in a decorated function.

    Findings, snapshots and out-of-memory texts show the name. The innermost counts.

    Raises WrongType for a name that is not a string, InvalidArgument for one with a NUL.
    """
    if not isinstance(name, str):
        raise WrongType(f"a tag is a string, not {name!r}")
    if "\0" in name:
        raise InvalidArgument(f"a tag ends at a NUL, and {name!r} has one")
    outer: str | None = getattr(_now, "tag", None)
    _now.tag = name
    _C.set_tag(name)
    try:
        yield
    finally:
        _now.tag = outer
        _C.set_tag(outer)


def start(modes: tuple[str, ...], host_writes: bool) -> None:
    """Turns on what these modes need of Python, before the driver opens.

    Findings nobody has read go to stderr when the process exits. host_writes: the host writes the
    memory directly (the emulation), so that every fill must be done when a call returns.
    """
    if not modes:
        return
    if host_writes and "sync" not in modes:
        _C.configure("debug", ",".join((*modes, "sync")))
    if "trace" in modes:
        _C.use_python_stacks()
    atexit.register(_report, os.getpid())


def _report(process: int) -> None:
    if os.getpid() != process:
        return
    try:
        for device in range(_C.device_count()):
            if _C.memory(device):  # others were never used
                _check_quietly(device)
    except GlakeError as error:  # the driver is gone: say so, and let the process end
        sys.stderr.write(f"glake debug: no report at exit: {error}\n")


def _check_quietly(device: int) -> None:
    try:
        check(device)
    except Corrupted as found:
        sys.stderr.write(f"{found}\n")
