"""Addresses that nodes listen on and connect to: "host:port", or "unix:" and a path."""

from __future__ import annotations

import os
import socket
import stat
import struct
from dataclasses import dataclass
from typing import Any

from glake.errors import InvalidArgument, PeerRefused

LONGEST_PATH = 107  # bytes of a socket's path
_USER = struct.Struct("3i")  # struct ucred: pid, uid, gid
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


@dataclass(frozen=True)
class Address:
    """A host and a port, or a path (then `host` is empty)."""

    host: str
    port: int
    path: str = ""

    @classmethod
    def of(cls, text: Any, listen: bool = False) -> Address:
        """The address in a text. Port 0 means any free port, for listening only. Raises
        InvalidArgument."""
        if isinstance(text, str) and text.startswith("unix:"):
            path = text.removeprefix("unix:")
            whole = path.startswith("/") and "\0" not in path  # C would end it at the NUL
            if not whole or len(os.fsencode(path)) > LONGEST_PATH:
                raise InvalidArgument(
                    f"address {text!r}: an absolute path of at most {LONGEST_PATH} bytes, none of "
                    "them NUL"
                )
            return cls("", 0, path)
        host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        host = host.removeprefix("[").removesuffix("]")
        low = 0 if listen else 1
        if not host or not port.isascii() or not port.isdigit() or not low <= int(port) < 65536:
            raise InvalidArgument(
                f'address {text!r}: "host:port" with a port of {low} to 65535, or "unix:/path"'
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """A socket that listens at the address. Raises OSError."""
        if not self.path:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((self.host, self.port), family=family, backlog=64)
        self._remove_dead()
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The socket is never open to others, not even before a chmod.
            before = os.umask(0o177)
            try:
                made.bind(self.path)
            finally:
                os.umask(before)
            made.listen(64)
        except BaseException:
            made.close()
            raise
        return made

    def connect(self, timeout: float) -> socket.socket:
        """A connection to the address. Raises OSError."""
        if not self.path:
            made = socket.create_connection((self.host, self.port), timeout)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch(made)
            return made
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(timeout)
            made.connect(self.path)
        except BaseException:
            made.close()
            raise
        return made

    def _remove_dead(self) -> None:
        """Removes the socket's path if nobody listens there, because the process was killed."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            try:
                asked.settimeout(1)
                asked.connect(self.path)
            except ConnectionRefusedError:
                if stat.S_ISSOCK(os.lstat(self.path).st_mode):
                    os.unlink(self.path)
            except OSError:
                pass


def watch(connection: socket.socket) -> None:
    """Makes the system notice within half a minute that another machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def require_same_user(connection: socket.socket) -> None:
    """Raises PeerRefused unless the other end of a Unix socket is this user's process."""
    asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _USER.size)
    pid, user, _ = _USER.unpack(asked)
    if user != os.geteuid():
        raise PeerRefused(f"process {pid} is user {user}'s, and this is user {os.geteuid()}'s")
