"""One copy over every useful path of a node at once. docs/transfer.md tells how to use it.

The functions here use the process's one engine. If no `Engine` is open, the first call opens one
over the machine's own topology. Importing this module loads nothing else: each name is fetched from
its module when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glake.transfer.array_memory import ASK, HOST, Raw
    from glake.transfer.bounds import Ends, bound, joint_bound
    from glake.transfer.default import copy, copy_batch, gather, scatter, stats
    from glake.transfer.engine import UNORDERED, Engine, default_engine
    from glake.transfer.files import FileEngine, FileTransfer, read_file, write_file
    from glake.transfer.handle import Result, Transfer
    from glake.transfer.host import pinned, register_host
    from glake.transfer.nodes import Mooncake, Nixl, Node, NodeTransfer, Peer, Tcp
    from glake.transfer.offload import Offloader
    from glake.transfer.planning import Plan, explain
    from glake.transfer.registration import Registration
    from glake.transfer.strided import Blocks
    from glake.transfer.tensors import to
    from glake.transfer.torch_mode import torch_copies

_HOME = {
    "ASK": "array_memory",
    "Blocks": "strided",
    "Ends": "bounds",
    "bound": "bounds",
    "copy": "default",
    "copy_batch": "default",
    "default_engine": "engine",
    "Engine": "engine",
    "explain": "planning",
    "FileEngine": "files",
    "FileTransfer": "files",
    "gather": "default",
    "HOST": "array_memory",
    "joint_bound": "bounds",
    "Mooncake": "nodes",
    "Nixl": "nodes",
    "Node": "nodes",
    "NodeTransfer": "nodes",
    "Offloader": "offload",
    "pinned": "host",
    "Peer": "nodes",
    "Plan": "planning",
    "Raw": "array_memory",
    "read_file": "files",
    "register_host": "host",
    "Registration": "host",
    "Result": "handle",
    "scatter": "default",
    "stats": "default",
    "Tcp": "nodes",
    "to": "tensors",
    "torch_copies": "torch_mode",
    "Transfer": "handle",
    "UNORDERED": "engine",
    "write_file": "files",
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
    "torch_copies",
    "write_file",
    "read_file",
    "FileTransfer",
    "FileEngine",
    "ASK",
    "HOST",
    "UNORDERED",
    "Blocks",
    "Ends",
    "Engine",
    "Mooncake",
    "Nixl",
    "Node",
    "NodeTransfer",
    "Offloader",
    "Peer",
    "Plan",
    "Raw",
    "Registration",
    "Result",
    "Tcp",
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
