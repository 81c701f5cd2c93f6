"""Allocation traces: what a job requested and freed. They are recorded without running the job, and
replayed under allocation policies.

Each name below is fetched when it is first used, so that importing this module does no work.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glake.trace.expected import assume as assume
    from glake.trace.job import Job as Job
    from glake.trace.kinds import kind as kind
    from glake.trace.planner import MemoryPlan as MemoryPlan
    from glake.trace.planner import plan as plan

_LAZY = {
    "Job": "job",
    "assume": "expected",
    "kind": "kinds",
    "MemoryPlan": "planner",
    "plan": "planner",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)


__all__ = ["Job", "MemoryPlan", "assume", "kind", "plan"]
