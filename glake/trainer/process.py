"""When this process began."""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_began() -> float:
    """Seconds since the epoch, by the kernel."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
