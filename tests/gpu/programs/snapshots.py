"""Snapshots and history of memory, as torch.cuda.memory and memory_viz read them."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch
from checks import DEVICE, MIB, fragmented, main, settle, stitch_of
from torch.cuda import _memory_viz


def block_of(tensor: torch.Tensor, segments: list[dict[str, Any]]) -> dict[str, Any]:
    """The one block of the segments that begins where the tensor does."""
    found = []
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            if block.get("address", at) == tensor.data_ptr():
                found.append(block)
            at += block["size"]
    assert len(found) == 1, f"{len(found)} blocks at {tensor.data_ptr():#x}"
    return found[0]


def check_every_tensor_is_in_a_block() -> None:
    tensors = [torch.empty(size, dtype=torch.uint8, device=DEVICE)
               for size in (100, 5000, MIB, 3 * MIB, 30 * MIB)]  # fmt: skip
    segments = torch.cuda.memory_snapshot()
    for tensor in tensors:
        block = block_of(tensor, segments)
        assert block["size"] >= tensor.nbytes and block["state"] == "active_allocated", block
        assert block["requested_size"] == tensor.nbytes, block


def check_segments_add_up() -> None:
    settle()
    held = [torch.empty(size * MIB, dtype=torch.uint8, device=DEVICE) for size in (1, 7, 40, 3)]
    del held[1]
    segments = torch.cuda.memory_snapshot()
    assert sum(each["total_size"] for each in segments) == torch.cuda.memory_reserved()
    assert sum(each["allocated_size"] for each in segments) == torch.cuda.memory_allocated()
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert segment["segment_type"] in ("small", "large") and segment["device"] == 0


def check_history_names_events_and_stacks() -> None:
    torch.cuda.memory._record_memory_history(max_entries=10000, stacks="python")
    try:
        tensor = torch.empty(11 * MIB, dtype=torch.uint8, device=DEVICE)
        address = tensor.data_ptr()
        del tensor
        torch.cuda.synchronize()
        again = torch.empty(64, dtype=torch.uint8, device=DEVICE)
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    trace = [each for each in snapshot["device_traces"][0] if each["addr"] == address]
    actions = [each["action"] for each in trace]
    assert "alloc" in actions and "free_requested" in actions, actions
    alloc = next(each for each in trace if each["action"] == "alloc")
    assert alloc["size"] >= 11 * MIB
    assert any(frame["filename"].endswith("snapshots.py") for frame in alloc["frames"])
    assert again.numel() == 64


def check_live_blocks_carry_stacks() -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
    try:
        tensor = torch.empty(5 * MIB, dtype=torch.uint8, device=DEVICE)
        frames = block_of(tensor, torch.cuda.memory._snapshot()["segments"])["frames"]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert any(frame["filename"].endswith("snapshots.py") for frame in frames)


def check_memory_viz_reads_it() -> None:
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
    try:
        tensors = [torch.empty(9 * MIB, device=DEVICE) for _ in range(3)]
        del tensors[1]
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert _memory_viz.segsum(snapshot)
    assert _memory_viz.trace(snapshot)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<" in plot(snapshot)


def check_dumped_file_loads() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "memory.pickle")
        torch.cuda.memory._dump_snapshot(str(path))
        loaded = pickle.loads(path.read_bytes())
    assert {"segments", "device_traces"} <= set(loaded)


def check_a_stitched_block_is_a_segment() -> None:
    kept = fragmented()
    tensor = torch.empty(stitch_of(), dtype=torch.uint8, device=DEVICE)
    segments = torch.cuda.memory_snapshot()
    assert block_of(tensor, segments)["size"] >= tensor.nbytes
    assert sum(each["total_size"] for each in segments) == torch.cuda.memory_reserved()
    assert len(kept) == 8


if __name__ == "__main__":
    main(globals())
