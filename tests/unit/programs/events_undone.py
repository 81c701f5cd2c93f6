"""Undoes all events from the last, as memory_viz does. What each event names must be there."""

import random

import glake
from glake import _C


def undo_all(shot):
    segments = {s["address"]: s["total_size"] for s in shot["segments"]}
    blocks = {
        b["address"] for s in shot["segments"] for b in s["blocks"] if b["state"] != "inactive"
    }

    def holder(at, size):
        inside = [a for a, n in segments.items() if a <= at and at + size <= a + n]
        assert len(inside) == 1, (hex(at), size)
        return inside[0]

    def join(at, size):
        if at + size in segments:
            size += segments.pop(at + size)
        before = [a for a, n in segments.items() if a + n == at]
        if before:
            at, size = before[0], segments.pop(before[0]) + size
        segments[at] = size

    mapped = 0
    for event in reversed(shot["device_traces"][0]):
        action, at, size = event["action"], event.get("addr"), event["size"]
        if action == "free_completed":
            blocks.add(at)
        elif action == "free_requested":
            assert at in blocks
        elif action == "alloc":
            blocks.remove(at)
        elif action == "segment_unmap":
            join(at, size)
        elif action == "segment_map":
            mapped += 1
            base = holder(at, size)
            whole = segments.pop(base)
            if at > base:
                segments[base] = at - base
            if at + size < base + whole:
                segments[at + size] = base + whole - at - size
        for block in blocks:
            holder(block, 1)
    return mapped, segments


glake.record_memory_history(max_entries=100000)
random.seed(7)
live, sizes = [], (3, 700, 2500, 5000, 9000, 15000, 21000)
for step in range(400):
    if live and random.random() < 0.5:
        _C.free(live.pop(random.randrange(len(live))))
    else:
        try:
            live.append(_C.malloc(random.choice(sizes) << 10))
        except glake.OutOfMemory:
            _C.free(live.pop(0))
    if step % 150 == 149:
        _C.empty_cache()
shot = glake.snapshot()
stats = glake.stats()
mapped, left = undo_all(shot)
assert not left, left
print(stats["glake.stitches"] + stats["glake.view_hits"], mapped)
