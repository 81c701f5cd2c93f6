"""What engines of kind "tcp" send each other. Everything that a peer can send is checked here."""

from __future__ import annotations

import ipaddress
import json
import struct
from dataclasses import asdict, dataclass, fields
from typing import Any

from glake.errors import BadMessage
from glake.transfer import fields as checks

MAGIC = b"glaketc1"  # and the version
ID_BYTES, TOKEN_BYTES = 16, 32
GREETING = struct.Struct(f">8s{ID_BYTES}s{TOKEN_BYTES}s")  # magic, who reads, the server's token
REQUEST = struct.Struct(">QQ")  # address, bytes
ANSWER = struct.Struct(">BQ")  # READ or REFUSED, bytes that follow
READ, REFUSED = 1, 2
_MOST_METADATA = 1 << 10
_ADDRESSES = 1 << 63
_MOST_HOST = 100


@dataclass(frozen=True)
class Metadata:
    """What a peer must know of an engine.

    Attributes:
        host, port: where it listens; the host as a number, so that no peer asks for a name.
        id: its own name, in hexadecimal digits.
        token: who has it may read the registered memory; in hexadecimal digits.
        address, size: the registered memory, and its bytes.
    """

    host: str
    port: int
    id: str
    token: str
    address: int
    size: int

    def encode(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, text: bytes) -> Metadata:
        """Checked. Raises BadMessage."""
        if len(text) > _MOST_METADATA:
            raise BadMessage(f"metadata of {len(text)} bytes: at most {_MOST_METADATA}")
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise BadMessage("metadata: not JSON") from None
        names = {field.name for field in fields(cls)}
        if type(given) is not dict or set(given) != names:
            raise BadMessage(f"metadata: not an object with exactly {', '.join(sorted(names))}")
        address = checks.whole("address", given["address"], 1, _ADDRESSES - 1)
        return cls(
            _host(given["host"]),
            checks.whole("port", given["port"], 1, 65535),
            _hexadecimal("id", given["id"], ID_BYTES),
            _hexadecimal("token", given["token"], TOKEN_BYTES),
            address,
            checks.whole("size", given["size"], 1, _ADDRESSES - address),
        )

    def greeting(self, reader: bytes) -> bytes:
        """What a reader sends first on a connection to this engine."""
        return GREETING.pack(MAGIC, reader, bytes.fromhex(self.token))

    def has(self, address: int, size: int) -> bool:
        """Whether the registered memory has this range."""
        return within(address, size, self.address, self.size)


def within(address: int, size: int, begin: int, length: int) -> bool:
    """Whether a range of at least one byte lies in another one. Whole numbers of Python do not
    overflow."""
    return begin <= address and size >= 1 and address + size <= begin + length


def _host(value: Any) -> str:
    found = checks.text("host", value, _MOST_HOST)
    try:
        ipaddress.ip_address(found)
    except ValueError:
        checks.refuse("host", value, "an address in numbers")
    return found


def _hexadecimal(field: str, value: Any, size: int) -> str:
    found = checks.text(field, value, 2 * size)
    if len(found) != 2 * size or not set(found) <= set("0123456789abcdef"):
        checks.refuse(field, "...", f"{2 * size} hexadecimal digits")  # a token is not shown
    return found
