"""Messages between the relay service and its clients: JSON objects, each after its length.

The length is four bytes, most significant first. Both sides check every field that they read, and
end the connection at the first wrong one. Processes with different VERSIONs do not talk to each
other.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NoReturn

from glake.errors import BadMessage
from glake.transfer.fields import flag, listed, number, refuse, text, whole

VERSION = 2
MOST_REQUEST = 1 << 16  # the most bytes of a message to the service
MOST_ANSWER = 1 << 22  # the most bytes of a message from the service
MOST_DEMANDS = 32
MOST_GPUS = 16
MOST_NODES = 64
MOST_LIMITS = 4096
_HEAD = struct.Struct(">I")
HEAD_BYTES = _HEAD.size

Demand = tuple[int, int, int, int, float]  # GPU and node of the source and destination, weight


def _gpus(field: str, value: Any) -> tuple[int, ...]:
    gpus = listed(field, value, MOST_GPUS, lambda name, gpu: whole(name, gpu, 0, MOST_GPUS - 1))
    if len(set(gpus)) != len(gpus):
        refuse(field, value, "free of repetitions")
    return gpus


def _demand(field: str, value: Any) -> Demand:
    if type(value) is not list or len(value) != 5:
        refuse(field, value, "five numbers: GPU, node, GPU, node, weight")
    gpus = [whole(field, value[i], -1, MOST_GPUS - 1) for i in (0, 2)]
    nodes = [whole(field, value[i], -2, MOST_NODES - 1) for i in (1, 3)]
    if max(gpus) < 0:
        refuse(field, value, "a copy with a GPU at one end")
    return gpus[0], nodes[0], gpus[1], nodes[1], number(field, value[4], 0.1, 10)


def _part(field: str, value: Any) -> float:
    return number(field, value, 0, 1)


@dataclass(frozen=True)
class Hello:
    """The first message of a client: who it is, and its topology."""

    kind: ClassVar[str] = "hello"
    version: int
    pid: int
    key: str  # the topology's
    gpus: tuple[int, ...]  # the client's own
    visible: int  # GPUs of the node, numbered from 0
    seen: tuple[int, ...]  # the GPUs of the node that the client's driver shows

    @classmethod
    def read(cls, given: dict[str, Any]) -> Hello:
        """Checked."""
        return cls(
            whole("version", given["version"], 0, 1 << 30),
            whole("pid", given["pid"], 1, 1 << 30),
            text("key", given["key"], 64),
            _gpus("gpus", given["gpus"]),
            whole("visible", given["visible"], 1, MOST_GPUS),
            _gpus("seen", given["seen"]),
        )

    @property
    def hidden(self) -> bool:
        """Whether the client sees one GPU of several. If so, the service copies for it on the
        others."""
        return len(self.seen) == 1 < self.visible


@dataclass(frozen=True)
class Demands:
    """All transfers that a client has under way, and the GPUs that it uses."""

    kind: ClassVar[str] = "demands"
    serial: int
    gpus: tuple[int, ...]
    demands: tuple[Demand, ...]

    @classmethod
    def read(cls, given: dict[str, Any]) -> Demands:
        """Checked."""
        return cls(
            whole("serial", given["serial"], 0, 1 << 53),
            _gpus("gpus", given["gpus"]),
            listed("demands", given["demands"], MOST_DEMANDS, _demand),
        )


@dataclass(frozen=True)
class Ask:
    """A question of the command line: `status`, or `stop`."""

    kind: ClassVar[str] = "ask"
    what: str

    @classmethod
    def read(cls, given: dict[str, Any]) -> Ask:
        """Checked."""
        if given["what"] not in ("status", "stop"):
            refuse("what", given["what"], "status or stop")
        return cls(given["what"])


@dataclass(frozen=True)
class Grant:
    """What a client may use: GPUs as relays, and its part of each limit of the topology."""

    kind: ClassVar[str] = "grant"
    serial: int  # the number of the demands that it answers
    relays: tuple[int, ...]
    limits: tuple[float, ...]

    @classmethod
    def read(cls, given: dict[str, Any]) -> Grant:
        """Checked."""
        return cls(
            whole("serial", given["serial"], 0, 1 << 53),
            _gpus("relays", given["relays"]),
            listed("limits", given["limits"], MOST_LIMITS, _part),
        )


@dataclass(frozen=True)
class Refused:
    """Why the service ends the connection. `lasting`: another attempt would change nothing."""

    kind: ClassVar[str] = "refused"
    reason: str
    lasting: bool

    @classmethod
    def read(cls, given: dict[str, Any]) -> Refused:
        """Checked."""
        return cls(text("reason", given["reason"], 1000), flag("lasting", given["lasting"]))


@dataclass(frozen=True)
class Status:
    """The service's books, for people and tests. They have no fixed form."""

    kind: ClassVar[str] = "status"
    books: dict[str, Any]

    @classmethod
    def read(cls, given: dict[str, Any]) -> Status:
        """Checked."""
        if type(given["books"]) is not dict:
            refuse("books", given["books"], "an object")
        return cls(given["books"])


Message = Hello | Demands | Ask | Grant | Refused | Status
FROM_CLIENT = (Hello, Demands, Ask)
FROM_SERVICE = (Grant, Refused, Status)


def encode(message: Message) -> bytes:
    """The bytes of the message: its length, and its text."""
    content = json.dumps({"kind": message.kind, **asdict(message)}, allow_nan=False).encode()
    return _HEAD.pack(len(content)) + content


def send(connection: socket.socket, message: Message) -> None:
    """Sends the message. Raises OSError if the other end is gone.

    No signal is raised then. Python ignores SIGPIPE, but a program may have set it to end the
    process again, and so may a program that embeds Python.
    """
    connection.sendall(encode(message), socket.MSG_NOSIGNAL)


def length(head: bytes, most: int) -> int:
    """The length of the message behind `head`, in bytes. Raises BadMessage for more than `most`, or
    for 0."""
    size: int = _HEAD.unpack(head)[0]
    if not 0 < size <= most:
        raise BadMessage(f"a message of {size} bytes: there are 1 to {most}")
    return size


def decode(content: bytes, known: tuple[type[Any], ...]) -> Any:
    """The message. Raises BadMessage, which names the field, unless it is one of `known`."""

    def no_number(name: str) -> NoReturn:
        raise BadMessage(f"{name} is no number")

    try:
        given = json.loads(content, parse_constant=no_number)
    except BadMessage:
        raise
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"no JSON: {error}") from error
    if type(given) is not dict:
        refuse("message", given, "an object")
    kind = given.pop("kind", None)
    for each in known:
        if each.kind != kind:
            continue
        fields = {one.name for one in dataclasses.fields(each)}
        if set(given) != fields:
            refuse(kind, sorted(given), f"{', '.join(sorted(fields))}")
        return each.read(given)
    refuse("kind", kind, f"one of {', '.join(each.kind for each in known)}")
