"""A snapshot (argument: its file), read by torch's own memory_viz."""

import pickle
import sys

import torch
from torch.cuda import _memory_viz as viz

import glake

glake.record_memory_history(max_entries=100000)


def make_activations(x):
    return torch.relu(x @ x)


kept = [torch.randn(300, 300) for _ in range(20)]
before = glake.snapshot()
results = [make_activations(x) for x in kept]
large = torch.zeros(3 << 20)
del kept[::2]
glake.dump_snapshot(sys.argv[1])
with open(sys.argv[1], "rb") as file:
    shot = pickle.load(file)
stats = glake.stats()
segments = shot["segments"]
assert sum(s["total_size"] for s in segments) == stats["reserved_bytes.all.current"]
assert sum(s["allocated_size"] for s in segments) == stats["allocated_bytes.all.current"]
flame = viz.memory(shot, format_flamegraph=lambda lines: lines)
assert "make_activations" in flame and "active_allocated" in flame
assert "seg_" in viz.segments(shot, format_flamegraph=lambda lines: lines)
viz.compare(before["segments"], segments, format_flamegraph=lambda lines: lines)
assert "total_reserved" in viz.segsum(shot)
assert "alloc" not in viz.trace(shot).splitlines()[0]
for plot in (viz.trace_plot(shot), viz.segment_plot(shot), viz.trace_plot(shot, None, True)):
    assert "snapshot.pickle" in plot and "MemoryViz.js" in plot and len(plot) > 10000
blocks = {b["address"]: b for s in segments for b in s["blocks"]}
block = blocks[large.data_ptr()]
assert block["state"] == "active_allocated" and block["requested_size"] == 12 << 20
trace = shot["device_traces"][0]
live = {}
for event in trace:
    if event["action"] == "alloc":
        assert event["addr"] not in live
        live[event["addr"]] = event["size"]
    elif event["action"] == "free_completed":
        live.pop(event["addr"], None)
assert live.keys() <= {a for a, b in blocks.items() if b["state"] == "active_allocated"}
assert sum(live.values()) > 40 * 300 * 300
