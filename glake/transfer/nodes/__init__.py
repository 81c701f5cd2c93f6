"""Memory of other nodes. A network engine carries bytes between nodes, and glake within this
node."""

from glake.transfer.nodes.backend import Backend, NetworkRead
from glake.transfer.nodes.handle import NodeTransfer
from glake.transfer.nodes.mooncake import Mooncake
from glake.transfer.nodes.nixl import Nixl
from glake.transfer.nodes.node import Node
from glake.transfer.nodes.peer import Peer
from glake.transfer.nodes.stats import NodeStats, totals
from glake.transfer.nodes.tcp import Tcp

__all__ = [
    "Backend",
    "Mooncake",
    "NetworkRead",
    "Nixl",
    "Node",
    "NodeStats",
    "NodeTransfer",
    "Peer",
    "Tcp",
    "totals",
]
