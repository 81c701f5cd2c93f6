"""Messages between nodes, as JSON. Every field is checked. No message has bytes of tensors."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any, ClassVar

from glake.errors import BadMessage
from glake.transfer import fields

VERSION = 1
MOST_BYTES = 1 << 20  # of a message, once the peer has shown that it has the secret
MOST_HELLO = 1 << 12  # of a message before that
MOST_NAME = 200
_MOST = 1 << 53  # whole numbers in JSON are exact up to here
_ADDRESSES = 1 << 63


def whole(given: dict[str, Any], field: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`. Raises BadMessage."""
    return fields.whole(field, given[field], low, high)


def text(given: dict[str, Any], field: str, most: int) -> str:
    """Printable text. Raises BadMessage."""
    return fields.text(field, given[field], most)


def flag(given: dict[str, Any], field: str) -> bool:
    """True or false. Raises BadMessage."""
    return fields.flag(field, given[field])


@dataclass(frozen=True)
class Hello:
    """The first message of each side, before they have a key."""

    kind: ClassVar[str] = "hello"
    version: int
    nonce: str

    @classmethod
    def read(cls, given: dict[str, Any]) -> Hello:
        """Checked."""
        nonce = text(given, "nonce", 64)
        if len(nonce) != 64 or not set(nonce) <= set("0123456789abcdef"):
            raise BadMessage("nonce: not 64 hexadecimal digits")
        return cls(whole(given, "version", 0, 1 << 30), nonce)


@dataclass(frozen=True)
class Join:
    """Each side's second message: the name of the node's engine, and the engine's metadata."""

    kind: ClassVar[str] = "join"
    backend: str
    metadata: str
    chunk: int

    @classmethod
    def read(cls, given: dict[str, Any]) -> Join:
        """Checked."""
        found = cls(
            text(given, "backend", 64),
            text(given, "metadata", MOST_BYTES // 2),
            whole(given, "chunk", 1, _MOST),
        )
        found.bytes()
        return found

    def bytes(self) -> bytes:
        """The metadata. Raises BadMessage."""
        try:
            return base64.b64decode(self.metadata, validate=True)
        except (binascii.Error, ValueError):
            raise BadMessage("metadata: not in base64") from None


@dataclass(frozen=True)
class Refused:
    """The reason why a node refuses the connection."""

    kind: ClassVar[str] = "refused"
    reason: str

    @classmethod
    def read(cls, given: dict[str, Any]) -> Refused:
        """Checked."""
        return cls(text(given, "reason", 1000))


@dataclass(frozen=True)
class Ask:
    """Asks how large the memory with this name is, and whether it may be written to."""

    kind: ClassVar[str] = "ask"
    id: int
    name: str

    @classmethod
    def read(cls, given: dict[str, Any]) -> Ask:
        """Checked."""
        return cls(whole(given, "id", 0, _MOST), text(given, "name", MOST_NAME))


@dataclass(frozen=True)
class Told:
    """The answer to Ask."""

    kind: ClassVar[str] = "told"
    id: int
    bytes: int
    writable: bool

    @classmethod
    def read(cls, given: dict[str, Any]) -> Told:
        """Checked."""
        size = whole(given, "bytes", 0, _MOST)
        return cls(whole(given, "id", 0, _MOST), size, flag(given, "writable"))


@dataclass(frozen=True)
class Stage:
    """Asks the peer to copy a range into one of its buffers, which we then read. The buffer is
    lent to us until Release."""

    kind: ClassVar[str] = "stage"
    id: int
    name: str
    offset: int
    bytes: int
    checked: bool

    @classmethod
    def read(cls, given: dict[str, Any]) -> Stage:
        """Checked."""
        return cls(
            whole(given, "id", 0, _MOST),
            text(given, "name", MOST_NAME),
            whole(given, "offset", 0, _MOST),
            whole(given, "bytes", 1, _MOST),
            flag(given, "checked"),
        )


@dataclass(frozen=True)
class Staged:
    """The answer to Stage. `checksum` is -1 unless one was requested."""

    kind: ClassVar[str] = "staged"
    id: int
    address: int
    checksum: int

    @classmethod
    def read(cls, given: dict[str, Any]) -> Staged:
        """Checked."""
        return cls(
            whole(given, "id", 0, _MOST),
            whole(given, "address", 1, _ADDRESSES),
            whole(given, "checksum", -1, (1 << 32) - 1),
        )


@dataclass(frozen=True)
class Release:
    """Says that we have read the buffer of Stage `stage`. The answer Done says that the buffer was
    lent to us all the time."""

    kind: ClassVar[str] = "release"
    id: int
    stage: int

    @classmethod
    def read(cls, given: dict[str, Any]) -> Release:
        """Checked."""
        return cls(whole(given, "id", 0, _MOST), whole(given, "stage", 0, _MOST))


@dataclass(frozen=True)
class Take:
    """Asks the peer to read one of our buffers into one of its own. The answer is Done. Land then
    copies it to the peer's range."""

    kind: ClassVar[str] = "take"
    id: int
    name: str
    offset: int
    bytes: int
    address: int
    checksum: int

    @classmethod
    def read(cls, given: dict[str, Any]) -> Take:
        """Checked."""
        return cls(
            whole(given, "id", 0, _MOST),
            text(given, "name", MOST_NAME),
            whole(given, "offset", 0, _MOST),
            whole(given, "bytes", 1, _MOST),
            whole(given, "address", 1, _ADDRESSES),
            whole(given, "checksum", -1, (1 << 32) - 1),
        )


@dataclass(frozen=True)
class Land:
    """Asks the peer to copy the buffer of Take `take` to the range of Take. The answer is Done."""

    kind: ClassVar[str] = "land"
    id: int
    take: int

    @classmethod
    def read(cls, given: dict[str, Any]) -> Land:
        """Checked."""
        return cls(whole(given, "id", 0, _MOST), whole(given, "take", 0, _MOST))


@dataclass(frozen=True)
class Done:
    """Says that request `id` is done."""

    kind: ClassVar[str] = "done"
    id: int

    @classmethod
    def read(cls, given: dict[str, Any]) -> Done:
        """Checked."""
        return cls(whole(given, "id", 0, _MOST))


@dataclass(frozen=True)
class Failed:
    """Says that request `id` has failed. `why` is "asked" if the request itself is wrong."""

    kind: ClassVar[str] = "failed"
    id: int
    why: str
    reason: str

    @classmethod
    def read(cls, given: dict[str, Any]) -> Failed:
        """Checked."""
        if given["why"] not in ("asked", "failed"):
            raise BadMessage('why is neither "asked" nor "failed"')
        return cls(whole(given, "id", 0, _MOST), given["why"], text(given, "reason", 2000))


HELLOS: tuple[type[Any], ...] = (Hello, Refused)
JOINS: tuple[type[Any], ...] = (Join, Refused)
REQUESTS: tuple[type[Any], ...] = (Ask, Stage, Release, Take, Land)
ANSWERS: tuple[type[Any], ...] = (Told, Staged, Done, Failed)


def printable(reason: object, most: int = 1000) -> str:
    """The reason as a text that Refused and Failed can carry."""
    return "".join(c if c.isprintable() else " " for c in str(reason))[:most]
