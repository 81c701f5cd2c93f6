"""job_worker.py JOB LIMIT: runs a script of benchmarks/real/jobs in at most LIMIT bytes (0: no
limit).

Prints `RESULT {...}`: whether the job finished, the seconds of each step, PyTorch's peaks in bytes,
and the driver calls of glake's allocator.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

JOBS = Path(__file__).resolve().parents[1] / "real" / "jobs"


def main() -> None:
    job, limit = sys.argv[1], int(sys.argv[2])
    torch.zeros(1, device="cuda")
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
    ends = [time.perf_counter()]

    def stepped(*_: object) -> None:
        torch.cuda.synchronize()
        ends.append(time.perf_counter())

    register_optimizer_step_post_hook(stepped)
    sys.path.insert(0, str(JOBS))
    told: dict[str, Any] = {"finished": True, "oom": None}
    try:
        runpy.run_path(str(JOBS / f"{job}.py"), run_name="__main__")
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        told = {"finished": False, "oom": str(error)[:1200]}
    stats = torch.cuda.memory_stats()
    told |= {
        "steps": len(ends) - 1,
        "step_seconds": [round(b - a, 4) for a, b in zip(ends, ends[1:], strict=False)],
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "alloc_retries": stats["num_alloc_retries"],
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }
    if os.environ.get("GLAKE_ALLOCATOR", "0") != "0":
        import glake

        told["driver_calls"] = glake.stats()["glake.driver_calls"]
    print("RESULT " + json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
