"""Records what a job allocates, then asks which allocator needs the smallest GPU for it.

python examples/record_and_replay.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from glake.trace.replay import load_trace, replay

JOB = """
import glake, torch
for rows in (100, 900, 300, 700, 500):
    glake.step()
    kept = [torch.empty(rows, 1 << 10) for _ in range(16)]
    del kept[::2]
"""
OPTIONS = {"GLAKE_ALLOCATOR": "1", "GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "1GiB"}

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "job.trace")
    environment = {**os.environ, **OPTIONS, "GLAKE_TRACE": str(path)}
    subprocess.run([sys.executable, "-c", JOB], env=environment, check=True)
    trace = load_trace(path)

smallest = {}
for policy in ("native", "expandable", "glake", "bound"):
    result = replay(trace, policy, find_min_capacity=True)
    assert result.min_capacity_bytes is not None
    smallest[policy] = result.min_capacity_bytes
    print(f"{policy:12} needs {result.min_capacity_bytes / 2**20:7.1f} MiB")
assert smallest["bound"] <= smallest["glake"] <= smallest["native"]
