"""Connects to the service of a topology, and starts one if there is none."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

from glake import children
from glake.errors import RelayRefused, RelayUnavailable
from glake.files import lock
from glake.transfer.relay import directory, protocol
from glake.transfer.relay.directory import Files
from glake.transfer.relay.protocol import Ask, Refused, Status
from glake.transfer.topology import Topology, node

IDLE = 30.0  # seconds without a client after which a service that we start ends
START_SECONDS = 20.0  # in which a service must come up, even on a busy machine
PATIENCE = 5.0  # seconds to wait for another process's start before we start one too
SEND_SECONDS = 5.0  # a service that takes no message for that long counts as gone
_LOOK = 0.02
# Seconds until another service is started, when the last one found that there is one already. Each
# wait doubles.
_FIRST_REST, _LAST_REST = 0.1, 3.2


def connect(files: Files) -> socket.socket | None:
    """A connection to the service. None if there is no service.

    Raises RelayRefused if the service is another user's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(SEND_SECONDS)
    try:
        connection.connect(str(files.socket))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    try:
        directory.check_peer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def spawn(files: Files, topology: Topology, idle: float) -> subprocess.Popen[bytes]:
    """Starts a service that outlives this process. If several processes do so, one service stays.

    Raises OSError if no process can be made.
    """
    files.store(topology)
    if not sys.executable:
        raise RelayUnavailable("there is no Python interpreter to run the relay service with")
    described = ("--described", str(files.topology), "--idle", repr(idle))
    # The service gets its options and the driver's name. It opens the driver for clients that see
    # one GPU.
    clean = node.service_environment()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(files.log, flags, 0o600)
    try:
        return subprocess.Popen(
            children.command("glake", "relayd", *described),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env=clean,
            start_new_session=True,
        )
    finally:
        os.close(log)


def reach(
    files: Files, topology: Topology, idle: float, stopped: threading.Event
) -> socket.socket | None:
    """A connection to the topology's service. If there is no service, one is started. None once
    `stopped` is set.

    Raises RelayUnavailable, RelayRefused or OSError.
    """
    process: subprocess.Popen[bytes] | None = None
    held: int | None = None
    began = next_start = time.monotonic()
    rest = _FIRST_REST
    try:
        while True:
            connection = connect(files)
            if connection is not None:
                return connection
            now = time.monotonic()
            waited = now - began
            if process is None:
                ready = held is not None
                if held is None:
                    held = lock(files.starting)  # if another has it, this process waits a little
                    ready = held is None and waited > PATIENCE
                if ready and now >= next_start:
                    process = spawn(files, topology, idle)
            elif process.poll() == 0:  # it found another service, which may be ending
                process, next_start = None, now + rest
                rest = min(2 * rest, _LAST_REST)
            elif process.poll() is not None:
                raise RelayUnavailable(
                    f"the relay service ended at once with {process.returncode}: see {files.log}"
                )
            if waited > START_SECONDS:
                raise RelayUnavailable(
                    f"the relay service does not answer after {waited:.0f} s: see {files.log}"
                )
            if stopped.wait(_LOOK):
                return None
    finally:
        if held is not None:
            os.close(held)
        if process is not None:
            _await_in_background(process)


def _await_in_background(process: subprocess.Popen[bytes]) -> None:
    # Otherwise the ended service would stay in the process table until this process ends.
    threading.Thread(target=process.wait, name="glake-relay-reaper", daemon=True).start()


def ask(files: Files, what: str) -> Status | None:
    """The service's books. None if there is no service. Raises RelayUnavailable if the service does
    not answer; also OSError, BadMessage or RelayRefused."""
    connection = connect(files)
    if connection is None:
        return None
    with contextlib.closing(connection):
        try:
            protocol.send(connection, Ask(what))
            head = _exactly(connection, protocol.HEAD_BYTES)
            text = _exactly(connection, protocol.length(head, protocol.MOST_ANSWER))
        except TimeoutError:
            raise RelayUnavailable(
                f"a relay service is there (process {directory.peer(connection)[0]}), and does not "
                f"answer within {SEND_SECONDS:g} s: it hangs or is stopped; its log: {files.log}"
            ) from None
        answer = protocol.decode(text, (Status, Refused))
    if isinstance(answer, Refused):
        raise RelayRefused(answer.reason)
    assert isinstance(answer, Status)
    return answer


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise RelayUnavailable("the relay service ended the connection")
        found += part
    return bytes(found)
