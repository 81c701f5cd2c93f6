"""Regions: memory with a name and perhaps a budget, which can be paused and resumed.

A paused region keeps its tensors and their addresses. Its memory is given back to the driver
meanwhile. Its bytes are kept in host memory or in a file, or dropped. docs/regions.md says when a
region can be paused. Every function raises the errors of glake.errors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glake import _C
from glake.allocator.contexts import ThreadSetting, reusable
from glake.arguments import c_string, device_number, flag, path, size, text
from glake.errors import GlakeError, InvalidArgument, InvalidDevice, RegionRefused, WrongType
from glake.hints import did_you_mean

if TYPE_CHECKING:
    from glake.typing import Device

_PLACES = {"host": 1, "disk": 2, "discard": 3}
_STATES = ("in use", "paused", "on its way")
_names: dict[tuple[int, int], str] = {}
_pools = ThreadSetting("region", _C.set_pool, RegionRefused)


@dataclass(frozen=True)
class Region:
    """A region on one device.

    Attributes:
        name: its name.
        device: the GPU's number.
        state: "in use", "paused", or "on its way" while another thread pauses or resumes it.
        to: where its bytes are while it is paused: "host", "disk" or "discard"; None: in use.
        budget: bytes that it may hold at most on this device; None: no bound.
        blocks: the number of live blocks.
        live: bytes in blocks, paused or not.
        reserved: bytes of physical memory that it holds now.
        paused: bytes of physical memory that resume() will take from the driver. They get fewer as
            blocks are freed.
        saved: bytes in host memory or in the file. They get fewer as whole portions of 32 MiB are
            freed.
    """

    name: str
    device: int
    state: str  # "in use", "paused" or "on its way"
    to: str | None  # the place of its bytes while it is paused
    budget: int | None
    blocks: int
    live: int  # in blocks, paused or not
    reserved: int  # held from the driver now
    paused: int  # resume() will take these from the driver
    saved: int  # in host memory or the file


@reusable(RegionRefused)
def region(name: str, budget: int | str | None = None) -> Iterator[None]:
    """A context whose allocations on the calling thread, on any device, go into a region.

    Blocks stay in the region until they are freed. Regions nest, and the innermost counts. Each
    thread has its own. The context can be used again, and as a decorator too. Contiguous blocks
    (glake.contiguous) are refused inside. During a graph's capture or in torch.cuda.use_mem_pool,
    PyTorch's pool counts instead.

    Args:
        name: 1 to 200 bytes without control characters, quotes or backslashes. The same name is the
            same region.
        budget: the most memory that it may hold on each device from now on, in bytes or as text
            such as "4GiB"; 0: no bound; None: the budget stays. An allocation beyond it raises
            OutOfMemory.

    Raises:
        InvalidArgument: the name cannot be one, or the budget is negative or no size.
        WrongType: the name is not a string, or the budget no size. Also raised for a decorated
            generator or async function, because its body runs after the call.
        RegionRefused: raised at the end, if a region that was opened later is still open, or if
            another thread opened this one. Blocks made meanwhile may be in another region than was
            intended.
    """
    pool = _pool(name)
    if budget is not None:
        _C.region_budget(pool, size("a budget", budget))
    with _pools.during(name, pool):
        yield


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """A context in which the thread's allocations are in no region, even if one is open."""
    before = _C.set_pool((0, 0))
    try:
        yield
    finally:
        _C.set_pool(before)


def pause(
    name: str,
    to: str = "host",
    folder: str | os.PathLike[str] | None = None,
    device: Device | None = None,
) -> int:
    """Gives a region's memory back to the driver, on one device or on all where it has memory.

    It waits for the device's work. Tensors stay, at their addresses. Until resume() no kernel and
    no replay of a graph may read or write them. They may be freed. If one of several devices is
    refused, devices that were paused before it are resumed (after "discard" with undefined
    contents).

    Args:
        name: the name of a region that has memory.
        to: "host" (pinned memory), "disk" (a file without a name in `folder`, gone with the
            process), or "discard" (the contents are undefined after resume()).
        folder: for "disk" only.
        device: 0, "cuda:0" or a torch.device; None: all.

    Returns:
        Bytes that went back to the driver.

    Raises:
        RegionRefused: the region is paused already, a stream is captured, memory is pinned, shared,
            lent or being copied, or the folder has no room. Nothing has changed.
        InvalidArgument: no such region, or a wrong argument.
        WrongType: a name or place that is no string, or a folder that is no path.
        InvalidDevice: no such GPU.
        OutOfMemory: there is no pinned host memory for it. Nothing has changed.
        MemoryOwed: it is paused, but the driver refuses to take all of it back.
        DriverError: the driver refused a call. Nothing has changed.
    """
    if not isinstance(to, str):
        raise WrongType(f"a region goes to a place named by a string, such as 'host', not {to!r}")
    if to not in _PLACES:
        raise InvalidArgument(f"a region goes to {', '.join(map(repr, _PLACES))}, not to {to!r}")
    if (folder is None) == (to == "disk"):
        raise InvalidArgument('pausing to "disk" needs a folder, and nothing else takes one')
    where = ""
    if folder is not None:
        named = c_string("a folder", path("a folder", folder))
        if not named:  # a Path would take it for the current directory
            raise InvalidArgument('pausing to "disk" needs a folder, and "" names none')
        where = os.fspath(Path(named).resolve())
    pool = _known(name)
    done: list[int] = []
    given = 0
    for at in _devices(name, device):
        before = at.reserved
        try:
            _C.region_pause(at.device, pool, _PLACES[to], where)
        except GlakeError:
            for resumed in done:
                _C.region_resume(resumed, pool, True)
            raise
        done.append(at.device)
        given += before
    return given


def resume(name: str, device: Device | None = None, verify: bool = False) -> int:
    """Brings a region's memory and bytes back, at the same addresses.

    If the region is paused on several devices and one of them is refused, devices before it stay
    resumed. Call again for the others.

    Args:
        name: of a paused region.
        device: 0, "cuda:0" or a torch.device; None: all where it is paused.
        verify: read the bytes back and compare them, which takes as long again. Saved bytes are
            compared with their checksum in any case.

    Returns:
        Bytes taken from the driver.

    Raises:
        OutOfMemory: idle memory is not enough. The region stays paused, and nothing is lost.
        Corrupted: bytes changed while they were saved, or on their way back. The region stays
            paused.
        RegionRefused: it is not paused, or a stream is captured.
        InvalidArgument: no such region, or a wrong argument.
        InvalidDevice: no such GPU.
        DriverError: the driver refused a call. It stays paused.
    """
    verify = flag("verify", verify)
    pool = _known(name)
    waiting = [at for at in _devices(name, device) if at.state != "in use"]
    if not waiting:
        raise RegionRefused(f"region {name!r} is paused on no device: there is nothing to resume")
    for at in waiting:
        _C.region_resume(at.device, pool, verify)
    return sum(at.paused for at in waiting)


def regions() -> list[Region]:
    """Every region that has or had memory, on each device. Opens no driver.

    Pools of CUDA graphs are not included, and cannot be paused by these functions.
    """
    found = []
    for at in _C.regions():
        name = _names.get((at["first"], at["second"]))
        if name is None:
            continue
        state = _STATES[at["state"]]
        to = {number: place for place, number in _PLACES.items()}.get(at["to"])
        found.append(
            Region(
                name=name,
                device=at["device"],
                state=state,
                to=to,
                budget=at["budget"] or None,
                blocks=at["blocks"],
                live=at["live_bytes"],
                reserved=at["reserved_bytes"],
                paused=at["paused_bytes"],
                saved=at["saved_bytes"],
            )
        )
    return found


def paused_pools() -> set[tuple[int, tuple[int, int]]]:
    """(device, pool) of every paused pool, also of CUDA graphs. Opens no driver."""
    return {(at["device"], (at["first"], at["second"])) for at in _C.regions() if at["state"]}


def _pool(name: str) -> tuple[int, int]:
    pool = _C.region_pool(text("a region's name", name))
    _names[pool] = name
    return pool


def _known(name: str) -> tuple[int, int]:
    for pool, known in _names.items():
        if known == name:
            return pool
    if not isinstance(name, str):
        raise WrongType(f"a region's name is a string, not {name!r}")
    hint = did_you_mean(name, _names.values())
    made = ", ".join(map(repr, sorted(_names.values()))) or "none"
    raise InvalidArgument(f"there is no region {name!r}{hint}; glake.region() has made: {made}")


def _devices(name: str, device: Device | None) -> list[Region]:
    """The devices on which the region has memory, or on which it is paused."""
    found = [at for at in regions() if at.name == name and (at.reserved or at.state != _STATES[0])]
    number = None if device is None else device_number(device)
    if number is not None:
        if number >= (count := _C.device_count()):
            raise InvalidDevice(f"device {device!r}: there are {count}, numbered from 0")
        found = [at for at in found if at.device == number]
    if not found:
        from glake.allocator import deduplication

        where = "any device" if number is None else f"cuda:{number}"
        said = (
            f"region {name!r} has no memory on {where}: allocate in it first "
            f"(with glake.region({name!r}))"
        )
        if deduplication.totals()["shards"]:
            said += (
                ". Weights that glake.deduplicate() has moved into shards are in no region, and "
                "other processes may use them"
            )
        raise InvalidArgument(said)
    return found
