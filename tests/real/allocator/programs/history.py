"""Events of a recorded history: snapshots, emptied caches, and a history that is begun again."""

import torch

MIB = 1 << 20


def u8(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def trace():
    return torch.cuda.memory._snapshot()["device_traces"][0]


def actions():
    return [entry["action"] for entry in trace()]


u8(1)
torch.cuda.memory._record_memory_history(stacks="python")
kept = u8(3 * MIB)
del kept
assert actions().count("snapshot") == 0  # a snapshot's event is only in the next snapshot
torch.cuda.memory_stats()
assert actions().count("snapshot") == 1
assert actions().count("snapshot") == 2

kept = u8(5 * MIB)
torch.cuda.memory._record_memory_history(stacks="python")
segments = torch.cuda.memory._snapshot()["segments"]
(block,) = (b for s in segments for b in s["blocks"] if b["state"] == "active_allocated"
            and b["size"] >= 5 * MIB)  # fmt: skip
assert any(frame["name"] == "u8" for frame in block["frames"]), block
assert all(e["frames"] for e in trace() if e["action"] == "alloc"), "stacks were wiped"

del kept
torch._C._cuda_setMemoryMetadata("who empties")
torch.cuda.empty_cache()
given = [e for e in trace() if e["action"] in ("segment_unmap", "segment_free")]
assert given and all(entry["frames"] for entry in given), given
assert all(entry.get("user_metadata") == "who empties" for entry in given), given
print("ok")
