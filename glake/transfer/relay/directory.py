"""The private directory of a user in which the relay service and its clients meet.

`$XDG_RUNTIME_DIR/glake-relay`, else `glake-relay-UID` in the directory for temporary files. The
directory and its files are private to the user. A directory that belongs to somebody else, or is
open to others, is refused. Each topology has a KEY and these files: KEY.sock, KEY.lock (held by the
service), KEY.log, KEY.json (the topology), KEY.starting (held by a client that starts a service),
KEY.copy (the socket on which the service copies for clients).
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glake import files, platform_file
from glake.errors import InvalidArgument, RelayRefused
from glake.transfer.topology import Topology

_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid
_LONGEST = 107  # the most bytes of a socket's path


def place(environ: Mapping[str, str] | None = None) -> Path:
    """The path of the directory, which may not exist."""
    return files.user_folder("glake-relay", environ)


def private(where: Path | None = None) -> Path:
    """Makes the directory if there is none. Raises RelayRefused if it is not private to this
    user."""
    where = where or place()
    try:
        problem = files.not_private(where)
    except OSError as error:
        raise RelayRefused(f"no private directory at {where}: {error.strerror}") from error
    if problem:
        raise RelayRefused(f"{problem}; remove it, or set XDG_RUNTIME_DIR")
    return where


def key_of(topology: Topology) -> str:
    """A hash of the graph and of its GPUs. Processes with the same hash share a service."""
    graph = topology.platform.as_dict()
    del graph["assumed"]
    facts = [graph, topology.devices, *([topology.refused] if topology.refused else [])]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Files:
    """The files of one topology's service."""

    where: Path
    key: str

    def __post_init__(self) -> None:
        """Raises InvalidArgument if the path is too long for a socket."""
        if len(os.fsencode(self.socket)) > _LONGEST:
            raise InvalidArgument(
                f"{self.socket} is over {_LONGEST} bytes, too long for a socket: set "
                "XDG_RUNTIME_DIR to a shorter one"
            )

    @property
    def socket(self) -> Path:
        """The socket of the service. Its mode is 0600."""
        return self.where / f"{self.key}.sock"

    @property
    def copies(self) -> Path:
        """The socket of the service for copies of processes that see one GPU. Its mode is 0600."""
        return self.where / f"{self.key}.copy"

    @property
    def lock(self) -> Path:
        """The file that the service locks while it lives."""
        return self.where / f"{self.key}.lock"

    @property
    def starting(self) -> Path:
        """The file that a client locks while it starts a service, so that only one client does."""
        return self.where / f"{self.key}.starting"

    @property
    def log(self) -> Path:
        """A bounded log."""
        return self.where / f"{self.key}.log"

    @property
    def topology(self) -> Path:
        """The file with the service's topology."""
        return self.where / f"{self.key}.json"

    def store(self, topology: Topology) -> None:
        """Writes the topology, whole or not at all, for the service that the caller will start."""
        content = {
            "name": topology.name,
            "devices": topology.devices,
            "platform": topology.platform.as_dict(),
            "refused": topology.refused,
        }
        files.write_whole(self.topology, json.dumps(content))


def stored(file: Path) -> Topology:
    """The topology that a starting process has written. Raises InvalidArgument if it cannot be
    read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        platform = platform_file.parse(content["platform"], str(file))
        devices = tuple(str(device) for device in content["devices"])
        refused = tuple((int(a), int(b)) for a, b in content.get("refused", ()))
        return Topology(str(content["name"]), platform, f"file {file}", devices, refused)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidArgument(f"{file} describes no topology: {error}") from error


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and user at the other end, as the kernel gives them."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, uid, _ = _PEER.unpack(found)
    return pid, uid


def check_peer(connection: socket.socket) -> int:
    """The process at the other end. Raises RelayRefused if it is another user's."""
    pid, uid = peer(connection)
    if uid != os.geteuid():
        raise RelayRefused(
            f"process {pid} at the other end is user {uid}'s, not user {os.geteuid()}'s"
        )
    return pid
