"""Checks the arguments of a Node."""

from __future__ import annotations

import os
import socket
from typing import Any

from glake import arguments
from glake.errors import InvalidArgument, PackageMissing
from glake.transfer.nodes.address import Address
from glake.transfer.nodes.backend import Backend
from glake.transfer.nodes.channel import SHORTEST_SECRET
from glake.transfer.nodes.mooncake import Mooncake
from glake.transfer.nodes.nixl import Nixl
from glake.transfer.nodes.tcp import Tcp

_BACKENDS: dict[str, type[Nixl] | type[Mooncake] | type[Tcp]] = {
    "tcp": Tcp, "nixl": Nixl, "mooncake": Mooncake,
}  # fmt: skip
_RDMA_DEVICES = "/sys/class/infiniband"  # also those of RoCE, iWARP and EFA


def secret_of(given: str | bytes | None) -> bytes:
    """The secret that all nodes know, as bytes; empty for None. Raises InvalidArgument if it is too
    short."""
    found = given.encode() if isinstance(given, str) else given
    if found is None:
        return b""
    if not isinstance(found, bytes) or len(found) < SHORTEST_SECRET:
        raise InvalidArgument(
            f"secret: text or bytes, at least {SHORTEST_SECRET} of them, such as "
            "secrets.token_hex(16), the same for all nodes"
        )
    return found


def seconds(given: Any) -> float:
    """Checks a timeout. Raises InvalidArgument."""
    number = given if isinstance(given, int | float) and not isinstance(given, bool) else 0
    if not 0 < number <= 1e6:
        raise InvalidArgument(f"timeout {given!r}: seconds above 0, at most 1000000")
    return float(number)


def sizes(chunk: str | int, depth: int, timeout: float) -> tuple[int, int, float]:
    """Checks the bytes of a piece, the number of pieces at once, and the seconds. Raises
    InvalidArgument."""
    block, several = arguments.size("chunk", chunk), arguments.whole(depth)
    if not 4096 <= block <= 1 << 30 or block % 4096:
        raise InvalidArgument(f"chunk of {block} bytes: a multiple of 4096, at most 1 GiB")
    if several is None or not 1 <= several <= 256:
        raise InvalidArgument(f"depth {depth!r}: pieces under way at once, 1 to 256")
    return block, several, seconds(timeout)


def host_of(given: str | None, at: Address | None) -> str:
    """The address at which peers' engines reach a node that listens at `at`. Raises
    InvalidArgument."""
    if given is not None:
        if not isinstance(given, str) or not given or not given.isprintable():
            raise InvalidArgument(f"host {given!r}: a name or an address of this machine")
        return given
    if at is None or at.host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return at.host or "127.0.0.1"


def has_rdma(devices: str = _RDMA_DEVICES) -> bool:
    """Whether this machine has a device for RDMA. `devices` is the folder in which the system lists
    them."""
    try:
        return bool(os.listdir(devices))
    except OSError:
        return False


def backend_of(given: str | Backend | None) -> Backend:
    """The engine of a node: the given object, or a new one. Raises InvalidArgument for another
    value, and PackageMissing if the machine has RDMA, and no engine that uses it is installed. TCP
    would then be slow, so it must be asked for."""
    if isinstance(given, Backend):
        return given
    if given is None:
        if not has_rdma():
            return Tcp()
        if Nixl.present():
            return Nixl()
        if Mooncake.present():
            return Mooncake(protocol="rdma")
        raise PackageMissing(
            "a Node on a machine with RDMA needs an engine that uses it, NIXL or Mooncake: pip "
            'install "glake[nodes]" (after the PyTorch you want), or pip install '
            '"glake[nodes-mooncake]"; or give backend="tcp", which goes without RDMA'
        )
    if not isinstance(given, str) or given not in _BACKENDS:
        raise InvalidArgument(f"backend {given!r}: one of {', '.join(_BACKENDS)}, or an object")
    return _BACKENDS[given]()
