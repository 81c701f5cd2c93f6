"""The debug modes (option `debug`, docs/debugging.md) and tags."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from glake import _C
from glake.allocator.contexts import ThreadSetting, reusable
from glake.arguments import c_string, device_number
from glake.errors import Corrupted, GlakeError

if TYPE_CHECKING:
    from glake.typing import Device


def check(device: Device = 0) -> None:
    """Waits for the device. Then checks the allocator's books, and the memory that the debug modes
    watch.

    It is slow, because it reads every live block's guards, and all idle memory that `poison` has
    filled.

    Args:
        device: 0, "cuda:0" or a torch.device.

    Raises:
        Corrupted: memory was written outside a block or after its free. The text names the damaged
            blocks.
        Internal: an invariant of the allocator is broken.
        GlakeError: there is no such device or no driver, or this is a forked child.
    """
    _C.check(device_number(device))


def findings() -> list[str]:
    """Returns the findings of the debug modes that nobody has read yet, one text for each. Waits
    for nothing.

    Raises:
        GlakeError: this is a forked child.
    """
    text = _C.findings()
    return text.split("\n\n") if text else []


_now = threading.local()


def _put_tag(name: str | None) -> str | None:
    outer: str | None = getattr(_now, "tag", None)
    _now.tag = name
    _C.set_tag(name)
    return outer


_tags = ThreadSetting("tag", _put_tag)


@reusable()
def tag(name: str) -> Iterator[None]:
    """Names the blocks that the calling thread allocates inside a `with` or a decorated function.

    Findings, snapshots and out-of-memory texts show the name. Tags nest, and the innermost counts.
    Tasks (asyncio) of one thread share its tag: do not await inside one.

    Args:
        name: text without a NUL.

    Raises:
        WrongType: the name is not a string, or the decorated function is a generator or async.
        InvalidArgument: the name has a NUL, or UTF-8 cannot encode it. Also raised at the end,
            on a thread that did not open it, or if a tag that was opened later is still open.
    """
    c_string("a tag", name)
    with _tags.during(name, name):
        yield


def start(modes: tuple[str, ...], host_writes: bool) -> None:
    """Prepares these debug modes in Python, before the driver opens.

    Findings that nobody has read go to stderr when the process exits. `host_writes`: the host
    writes the memory directly, as in the emulation. Then every fill must be done when a call
    returns.
    """
    if not modes:
        return
    if host_writes and "sync" not in modes:
        _C.configure("debug", ",".join((*modes, "sync")))
    if "trace" in modes:
        _C.use_python_stacks()
    report_at_exit()


def report_at_exit() -> None:
    """Lets the exit of this process print findings that nobody has read, if a debug mode is on."""
    atexit.unregister(_report)  # once, and before what was registered meanwhile
    atexit.register(_report, os.getpid())


def _report(process: int) -> None:
    if os.getpid() != process or _modes() == "none":
        return
    try:
        for device in range(_C.device_count()):
            if _C.memory(device):  # other devices were never used
                _check_quietly(device)
    except GlakeError as error:  # the driver is gone: reports that, and lets the process end
        sys.stderr.write(f"glake debug: no report at exit: {error}\n")


def _modes() -> str:
    (modes,) = (str(each["value"]) for each in _C.options() if each["name"] == "debug")
    return modes


def _check_quietly(device: int) -> None:
    try:
        check(device)
    except Corrupted as found:
        sys.stderr.write(f"{found}\n")
