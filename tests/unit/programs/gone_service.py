"""Speaks to a relay service that accepts the connection and ends. SIGPIPE ends this process."""

import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from glake.transfer.relay import directory, protocol, starting
from glake.transfer.relay.protocol import Demands

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
files = directory.Files(Path(sys.argv[1]), sys.argv[2])
listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listening.bind(str(files.socket))
listening.listen()
connect = starting.connect


def connect_to_one_that_ends(to: directory.Files) -> socket.socket:
    connection = connect(to)
    assert connection is not None
    listening.accept()[0].close()
    return connection


def said(what: str, call: Callable[[], object]) -> None:
    try:
        call()
        print(f"{what}: no error")
    except OSError as error:
        print(f"{what}: {type(error).__name__}")


starting.connect = connect_to_one_that_ends
said("ask", lambda: starting.ask(files, "status"))
gone = connect_to_one_that_ends(files)
said("demands", lambda: protocol.send(gone, Demands(1, (0,), ())))
