"""Messages of the relay service, and the directory in which it meets its clients."""

import dataclasses
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from glake.errors import BadMessage, InvalidArgument, InvalidOption, RelayRefused
from glake.files import lock
from glake.transfer import topology
from glake.transfer.relay import directory, modes, protocol
from glake.transfer.relay.protocol import Ask, Demands, Grant, Hello, Refused, Status

MESSAGES = [
    Hello(1, 12, "abc", (0, 3), 8, (0, 3, 5)),
    Demands(7, (), ((-1, -2, 0, 0, 1.0), (1, 0, 2, 0, 0.5))),
    Ask("status"),
    Grant(7, (1, 2), (0.0, 0.25, 1.0)),
    Refused("no", lasting=False),
    Status({"clients": []}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_both_ways(message: Any) -> None:
    data = protocol.encode(message)
    head, text = data[: protocol.HEAD_BYTES], data[protocol.HEAD_BYTES :]
    assert protocol.length(head, protocol.MOST_REQUEST) == len(text)
    assert protocol.decode(text, (type(message),)) == message


def altered(message: Any, **changes: Any) -> bytes:
    given = json.loads(protocol.encode(message)[protocol.HEAD_BYTES :])
    return json.dumps({**given, **changes}).encode()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "message"),
        (b"[" * 60000, "no JSON|message"),
        (b'{"kind": "dance"}', "kind"),
        (b'{"kind": ["hello"]}', "kind"),
        (b'{"kind": "hello"}', "hello"),
        (b'{"kind": "ask", "what": NaN}', "NaN"),
        (altered(MESSAGES[0], more=1), "hello"),
        (altered(MESSAGES[0], pid=True), "pid"),
        (altered(MESSAGES[0], pid="1"), "pid"),
        (altered(MESSAGES[0], pid=0), "pid"),
        (altered(MESSAGES[0], key="a\nb"), "key"),
        (altered(MESSAGES[0], key="a" * 65), "key"),
        (altered(MESSAGES[0], gpus=[0, 0]), "gpus"),
        (altered(MESSAGES[0], gpus=[16]), r"gpus\[0\]"),
        (altered(MESSAGES[0], visible=17), "visible"),
        (altered(MESSAGES[0], seen=[1, 1]), "seen"),
        (altered(MESSAGES[1], demands=[[0, 0, 1, 0]]), r"demands\[0\]"),
        (altered(MESSAGES[1], demands=[[-1, 0, -1, 0, 1]]), "GPU"),
        (altered(MESSAGES[1], demands=[[0, 0, 1, 0, 0]]), "weight|number"),
        (altered(MESSAGES[1], demands=[[0, 0, 1, 0, 1]] * 33), "demands"),
        (altered(MESSAGES[1], demands=[[0.5, 0, 1, 0, 1]]), r"demands\[0\]"),
        (altered(MESSAGES[1], serial=-1), "serial"),
        (altered(MESSAGES[2], what="sing"), "what"),
        (altered(MESSAGES[2], what=["stop"]), "what"),
        (protocol.encode(MESSAGES[3])[4:], "kind"),
    ],
)
def test_wrong_messages_are_named(text: bytes, named: str) -> None:
    with pytest.raises(BadMessage, match=named):
        protocol.decode(text, protocol.FROM_CLIENT)


@pytest.mark.parametrize("limits", [[1.5], [-0.1], ["1"], {}])
def test_wrong_grants(limits: Any) -> None:
    with pytest.raises(BadMessage, match="limits"):
        protocol.decode(altered(MESSAGES[3], limits=limits), protocol.FROM_SERVICE)


@pytest.mark.parametrize("size", [0, protocol.MOST_REQUEST + 1, 2**32 - 1])
def test_lengths(size: int) -> None:
    with pytest.raises(BadMessage, match="bytes"):
        protocol.length(struct.pack(">I", size), protocol.MOST_REQUEST)


def test_directory_is_private(tmp_path: Path) -> None:
    where = directory.private(tmp_path / "made")
    assert where.stat().st_mode & 0o777 == 0o700
    assert directory.private(where) == where
    where.chmod(0o750)
    with pytest.raises(RelayRefused, match="750"):
        directory.private(where)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(RelayRefused, match="no private directory"):
        directory.private(link)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RelayRefused, match="no private directory"):
        directory.private(file)


def test_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = directory.private(tmp_path / "made")
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(RelayRefused, match=f"user {other}"):
        directory.private(where)


def test_place(tmp_path: Path) -> None:
    assert directory.place({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "glake-relay"
    for base in ("", "relative", str(tmp_path / "absent")):
        assert directory.place({"XDG_RUNTIME_DIR": base}).name == f"glake-relay-{os.geteuid()}"


def test_paths_too_long_for_a_socket(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="XDG_RUNTIME_DIR"):
        directory.Files(tmp_path / ("x" * 110), "key")


def test_one_lock(tmp_path: Path) -> None:
    files = directory.Files(directory.private(tmp_path / "d"), "key")
    held = lock(files.lock)
    assert held is not None and lock(files.lock) is None
    os.close(held)
    again = lock(files.lock)
    assert again is not None
    os.close(again)


def test_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert directory.peer(here) == (os.getpid(), os.geteuid())
        assert directory.check_peer(here) == os.getpid()
        monkeypatch.setattr(directory, "peer", lambda _: (5, os.geteuid() + 1))
        with pytest.raises(RelayRefused, match="process 5"):
            directory.check_peer(here)


def test_keys_tell_topologies_apart(tmp_path: Path) -> None:
    one = topology.from_preset("dgx_a100")
    files = directory.Files(directory.private(tmp_path / "d"), directory.key_of(one))
    files.store(one)
    assert files.topology.stat().st_mode & 0o777 == 0o600
    read = directory.stored(files.topology)
    assert directory.key_of(read) == files.key and read.text() == one.text()
    others = [
        topology.from_preset("dgx1v"),
        topology.Topology(one.name, one.platform, one.source, ("some GPU 0000:01:00.0",)),
        topology.Topology(one.name, topology.first_gpus(one.platform, 4), one.source),
    ]
    refused = dataclasses.replace(one, refused=((0, 1), (2, 7)))
    files.store(refused)
    assert directory.stored(files.topology).refused == refused.refused
    others.append(refused)
    assert len({files.key, *map(directory.key_of, others)}) == 5
    for text in ("", "{}", '{"name": "x", "devices": [], "platform": {"gpus": 1}}', "[]"):
        files.topology.write_text(text)
        with pytest.raises(InvalidArgument, match=str(files.topology)):
            directory.stored(files.topology)


def test_modes() -> None:
    assert modes.chosen(None, {}) == "all"
    assert modes.chosen(None, {"LOCAL_WORLD_SIZE": "1"}) == "all"
    assert modes.chosen(None, {"LOCAL_WORLD_SIZE": "8"}) == "lent"
    assert modes.chosen(None, {"LOCAL_WORLD_SIZE": "8", "GLAKE_RELAYS": "own"}) == "own"
    assert modes.chosen("all", {"GLAKE_RELAYS": "own"}) == "all"
    with pytest.raises(InvalidArgument, match="all, lent, own"):
        modes.chosen("some", {})
    with pytest.raises(InvalidOption, match="RELAYS"):
        modes.chosen(None, {"GLAKE_RELAYS": "some"})
    assert modes.own_gpus(8, {"LOCAL_RANK": "3"}) == (3,)
    assert modes.own_gpus(8, {"SLURM_LOCALID": "3"}) == (3,)
    assert modes.own_gpus(1, {"LOCAL_RANK": "3"}) == (0,)
    assert modes.own_gpus(2, {"LOCAL_RANK": "3"}) == modes.own_gpus(8, {}) == ()
