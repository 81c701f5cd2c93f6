"""The connection between two nodes, without nodes."""

import os
import signal
import socket

from glake.errors import PeerLost
from glake.transfer.nodes.channel import Channel
from glake.transfer.nodes.messages import Done


def test_a_lost_peer_sends_no_signal() -> None:
    """Many programs let SIGPIPE end them. A peer that is gone must not."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            mine, theirs = socket.socketpair()
            channel = Channel(mine, b"", client=True, timeout=1.0)
            theirs.close()
            channel.send(Done(1))
        except PeerLost:
            code = 7
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
