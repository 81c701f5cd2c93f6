"""Snapshots and histories of plain blocks on two devices."""

import glake
from glake import _C


def allocate_here(size, device=0):
    with glake.tag("outer"), glake.tag("inner"):
        return _C.malloc(size, device)


old = _C.malloc(1000)
glake.record_memory_history(max_entries=100)
block, other = allocate_here(5 << 20), allocate_here(3000, 1)
_C.free(other)
shot = glake.snapshot()
(mine,) = (b for s in shot["segments"] for b in s["blocks"] if b["address"] == block)
assert mine["state"] == "active_allocated" and mine["requested_size"] == 5 << 20, mine
assert mine["user_metadata"] == "inner"
names = [frame["name"] for frame in mine["frames"]]
assert "allocate_here" in names and names[-1] == "<module>", names
first, second = shot["device_traces"]
assert [e["action"] for e in first] == ["segment_map", "alloc", "snapshot"], first
assert all(e["frames"][0]["name"] == "allocate_here" for e in first[:2]), first
actions = ["segment_map", "alloc", "free_requested", "free_completed", "snapshot"]
assert [e["action"] for e in second] == actions, second
assert {s["device"] for s in shot["segments"]} == {0, 1}
for s in shot["segments"]:
    assert sum(b["size"] for b in s["blocks"]) == s["total_size"]
stats = glake.stats(0)
mine = [s for s in shot["segments"] if s["device"] == 0]
assert sum(s["total_size"] for s in mine) == stats["reserved_bytes.all.current"]
assert sum(s["allocated_size"] for s in mine) == stats["allocated_bytes.all.current"]
assert shot["allocator_settings"]["glake.policy"] == "balanced"
glake.record_memory_history(None)
shot = glake.snapshot()
assert not any(shot["device_traces"]) and {s["device"] for s in shot["segments"]} == {0, 1}
glake.record_memory_history("state", stacks="all")
block = _C.malloc(100)
(mine,) = (b for s in glake.snapshot()["segments"] for b in s["blocks"] if b["address"] == block)
assert any("libglake" in frame["filename"] for frame in mine["frames"]), mine["frames"]
