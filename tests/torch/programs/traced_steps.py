"""A recorded trace with steps (argument: a folder)."""

import sys

import torch

import glake

recording = glake.record_trace(sys.argv[1] + "/job.trace")
for _ in range(3):
    torch.ones(1000).sum()
    glake.step()
recording.stop()
print(glake.stats()["glake.steps"])
try:
    glake.record_trace(sys.argv[1] + "/absent/job.trace")
except glake.GlakeError as error:
    print("absent" in str(error))
try:
    glake.stats(99)
except glake.InvalidDevice:
    print("no such device")
