"""The client's side of the relay service's connection, without an engine."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from glake.errors import RelayRefused
from glake.transfer.relay import protocol
from glake.transfer.relay.client import RelayClient
from glake.transfer.relay.protocol import Refused


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[RelayClient]:
    """A client that sends a byte where it would send demands."""
    made = object.__new__(RelayClient)
    made._event, event = os.pipe()
    made._wake_read, made._wake_write = os.pipe()
    made._stopped, made._demands = threading.Event(), {}
    monkeypatch.setattr(made, "_report", lambda connection: connection.sendall(b"x"))
    yield made
    for descriptor in (made._event, event, made._wake_read, made._wake_write):
        os.close(descriptor)


@pytest.mark.parametrize("said", [True, False])
def test_a_service_that_takes_no_more_demands_may_have_said_why(
    client: RelayClient, said: bool
) -> None:
    """A client that is about to send does not miss that the service was stopped on purpose."""
    service, connection = socket.socketpair()
    if said:
        service.sendall(protocol.encode(Refused("the relay service was stopped", lasting=True)))
    service.close()
    with connection, pytest.raises(RelayRefused if said else BrokenPipeError):
        client._exchange(connection)
