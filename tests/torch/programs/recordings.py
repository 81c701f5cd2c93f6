"""A recording ends with its block (argument: a folder)."""

import sys

import torch

import glake

with glake.record_trace(sys.argv[1] + "/job.trace") as recording:
    torch.ones(1000)
size = recording.path.stat().st_size
torch.ones(1000)
assert size == recording.path.stat().st_size
again = glake.record_trace(sys.argv[1] + "/again.trace")
again.stop()
again.stop()
print(sum(line.startswith("a ") for line in recording.path.read_text().splitlines()))
