"""One copy over every useful path of a node at once. docs/transfer.md tells how to use it.

The functions here go through the process's one engine, which the first of them opens over the
machine's own topology unless an `Engine` is open. Importing this loads nothing: each name is
fetched from its module when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glake.transfer.bounds import bound, joint_bound
    from glake.transfer.buffers import ASK, HOST, Raw
    from glake.transfer.default import copy, copy_batch, gather, scatter, stats
    from glake.transfer.engine import UNORDERED, Engine, default_engine
    from glake.transfer.handle import Result, Transfer
    from glake.transfer.host import pinned, register_host
    from glake.transfer.offload import Offloader
    from glake.transfer.planning import Plan, explain
    from glake.transfer.registration import Registration
    from glake.transfer.runs import Blocks
    from glake.transfer.tensors import to

_HOME = {
    "ASK": "buffers",
    "Blocks": "runs",
    "Engine": "engine",
    "HOST": "buffers",
    "Offloader": "offload",
    "Plan": "planning",
    "Raw": "buffers",
    "Registration": "host",
    "Result": "handle",
    "Transfer": "handle",
    "UNORDERED": "engine",
    "bound": "bounds",
    "copy": "default",
    "copy_batch": "default",
    "default_engine": "engine",
    "explain": "planning",
    "gather": "default",
    "joint_bound": "bounds",
    "pinned": "host",
    "register_host": "host",
    "scatter": "default",
    "stats": "default",
    "to": "tensors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'glake.transfer' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"glake.transfer.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


__all__ = [
    "ASK",
    "HOST",
    "UNORDERED",
    "Blocks",
    "Engine",
    "Offloader",
    "Plan",
    "Raw",
    "Registration",
    "Result",
    "Transfer",
    "bound",
    "copy",
    "copy_batch",
    "default_engine",
    "explain",
    "gather",
    "joint_bound",
    "pinned",
    "register_host",
    "scatter",
    "stats",
    "to",
]
