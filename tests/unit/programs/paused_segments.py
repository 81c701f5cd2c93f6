"""The sums of a snapshot's segments and blocks, while a region is paused."""

import glake

with glake.region("weights"):
    paused = glake.empty("8MiB")
kept = glake.empty("4MiB")
for pause in (True, False):
    segments, stats = glake.snapshot()["segments"], glake.stats()
    held = sum(s["total_size"] for s in segments if not s["paused"])
    assert held == stats["reserved_bytes.all.current"], segments
    assert sum(s["allocated_size"] for s in segments) == stats["allocated_bytes.all.current"]
    if pause:
        glake.pause("weights")
