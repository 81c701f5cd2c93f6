"""Dry runs: an unmodified CUDA script, run by PyTorch's CUDA build on simulated GPUs.

Each name is fetched when it is first used. Importing this loads nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glake.dryrun.result import DryRun, Refusal
    from glake.dryrun.run import dry_run

_HOME = {
    "DryRun": "glake.dryrun.result",
    "Refusal": "glake.dryrun.result",
    "dry_run": "glake.dryrun.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'glake.dryrun' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


__all__ = ["DryRun", "Refusal", "dry_run"]
