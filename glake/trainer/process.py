"""When processes began, by the kernel."""

from __future__ import annotations

import os
import time
from pathlib import Path


def ticks_at_start(pid: int | str = "self") -> int | None:
    """When a process began, in the kernel's ticks since the machine did; None: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def process_began() -> float:
    """When this process began, in seconds since the epoch."""
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + (ticks_at_start() or 0) / os.sysconf("SC_CLK_TCK")
