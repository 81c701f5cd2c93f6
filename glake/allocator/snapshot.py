"""Snapshots and history of device memory, in the form of torch.cuda.memory._snapshot().

https://pytorch.org/memory_viz and `python -m torch.cuda._memory_viz` open such snapshots. Each
physical byte is in one segment. A stitched block is a segment of its own, at its own address.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from glake import _C, arguments, files
from glake.errors import FileFailed, InvalidArgument

if TYPE_CHECKING:
    from glake.typing import (
        Json,
        Snapshot,
        SnapshotBlock,
        SnapshotEvent,
        SnapshotFrame,
        SnapshotSegment,
    )

ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "snapshot", "oom",
)  # fmt: skip
# The names that memory_viz reads. torch's own documentation calls the last one
# active_awaiting_free.
STATES = ("inactive", "active_allocated", "active_pending_free")
_NEVER, _STATE, _ALLOC, _ALL = range(4)  # GLAKE_CONTEXT_*
STACKS = ("python", "all", None)
_ENTRIES = {"all": None, "state": 1}


def record_memory_history(
    enabled: str | None = "all",
    *,
    max_entries: int = sys.maxsize,
    stacks: str | None = "python",
    clear_history: bool = False,
) -> None:
    """Records what the allocator does from now on, with the Python stack of each caller.

    Args:
        enabled: "all" keeps the last `max_entries` events of each device, and the stacks of live
            blocks. "state" keeps only the stacks of live blocks. None ends the recording and
            forgets the events.
        max_entries: the number of events kept for each device, 1 or more.
        stacks: "python"; "all": also the C++ frames behind them; None: events without stacks.
        clear_history: forget what was recorded before.

    Raises:
        InvalidArgument: another value of one of these.
        Forked: this is a forked child.
    """
    if enabled is None:
        _C.record_history(0, _NEVER, True)
        return
    most = arguments.whole(max_entries)
    if most is None or most < 1:
        raise InvalidArgument(
            f"record_memory_history: max_entries is a whole number from 1 on, not {max_entries!r}"
        )
    arguments.word("record_memory_history: enabled", enabled, (*_ENTRIES, None))
    arguments.word("record_memory_history: stacks", stacks, STACKS)
    arguments.flag("record_memory_history: clear_history", clear_history)
    entries = _ENTRIES[enabled] or min(most, sys.maxsize)
    when = _NEVER if stacks is None else _STATE if enabled == "state" else _ALL
    _C.record_history(entries, when, clear_history, stacks == "all")


def snapshot() -> Snapshot:
    """All memory held on every device, its blocks, and the recorded events.

    Returns:
        A dict of `segments`, `device_traces`, `allocator_settings` and `external_annotations`, in
        the form of torch.cuda.memory._snapshot(). Sizes and addresses are bytes; times are
        microseconds since 1970.

    Raises:
        GlakeError: there is no driver, or this is a forked child.
    """
    devices = range(_C.device_count())
    return {
        "segments": [segment for device in devices for segment in _segments(device)],
        "device_traces": [list(map(_entry, _C.history(device))) for device in devices],
        "allocator_settings": _settings(),
        "external_annotations": [],
    }


def dump_snapshot(path: str | Path = "dump_snapshot.pickle") -> None:
    """Writes snapshot() as a pickle, which pytorch.org/memory_viz opens.

    Args:
        path: the file's path.

    Raises:
        GlakeError: as of snapshot().
        WrongType: `path` is not a path.
        FileFailed: the file cannot be written.
    """
    name = arguments.path("a snapshot's file", path)
    found = snapshot()
    try:
        with open(name, "wb") as file:
            pickle.dump(found, file)
    except (OSError, ValueError) as error:  # a ValueError: no file has such a name
        failed = files.failed(error, name)
        why = f"cannot write a snapshot: {failed.strerror}"
        raise FileFailed(failed.errno, why, name) from None


def _segments(device: int) -> list[SnapshotSegment]:
    found: list[SnapshotSegment] = []
    for address, size, stream, pool, large, kind, blocks, paused in _C.memory(device):
        shown = [_block(block) for block in blocks]
        active = [each for each in shown if each["state"] != "inactive"]
        allocated = [each for each in active if each["state"] == "active_allocated"]
        found.append(
            {
                "device": device,
                "address": address,
                "total_size": size,
                "stream": stream,
                "segment_type": "large" if large else "small",
                "segment_pool_id": pool,
                "is_expandable": kind == 0,
                "paused": paused,  # the region is paused, and holds no memory now
                "allocated_size": sum(each["size"] for each in allocated),
                "active_size": sum(each["size"] for each in active),
                "requested_size": sum(each["requested_size"] for each in active),
                "blocks": shown,
            }
        )
    return found


def _block(block: _C.Block) -> SnapshotBlock:
    address, size, requested, state, _, tag, frames = block
    shown: SnapshotBlock = {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": STATES[state],
        "frames": _frames(frames),
    }
    if tag is not None:
        shown["user_metadata"] = tag
    return shown


def _entry(event: _C.Event) -> SnapshotEvent:
    action, address, size, stream, pool, time_ns, tag, frames = event
    shown: SnapshotEvent = {
        "action": ACTIONS[action],
        "size": size,
        "stream": stream,
        "pool_id": pool,
        "time_us": time_ns // 1000,
        "compile_context": "N/A",
        "user_metadata": tag or "",
        "frames": _frames(frames),
    }
    shown["device_free" if shown["action"] == "oom" else "addr"] = address
    return shown


def _frames(frames: _C.Frames) -> list[SnapshotFrame]:
    return [{"filename": file, "line": line, "name": name} for file, line, name in frames]


def _settings() -> dict[str, Json]:
    options = {row["name"]: row["value"] for row in _C.options()}
    return {
        "PYTORCH_CUDA_ALLOC_CONF": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "expandable_segments": True,
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {},
        "graph_capture_record_stream_reuse": False,
        **{f"glake.{name}": value for name, value in options.items()},
    }
