"""Kills processes while they read this node's memory, for at least so many seconds, and until at
least so many are killed (arguments). Prints how many were killed. Ends with an error unless the
node still serves others after each round.

NODE_BACKEND=nixl shows what the TCP engine is for: there UCX ends this process within some rounds.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "inside"))
from memory import MIB, Device  # noqa: E402
from nodes import SETTINGS, Other, pattern, settled  # noqa: E402

from glake import transfer as t  # noqa: E402

SIZE, AT_ONCE = 64 * MIB, 4
end, least = time.monotonic() + float(sys.argv[1]), int(sys.argv[2])
killed = 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def kill_readers(served: t.Node) -> None:
    """Lets processes read at once, and kills each amid its read."""
    readers = [Other() for _ in range(AT_ONCE)]
    try:
        for reader in readers:
            reader.do(f"kept.update(peer=node.connect({served.address!r}))")
            reader.do(f"kept.update(buffer=np.zeros({SIZE}, 'uint8'))")
        before = served.stats()["gpu_bytes"]
        for reader in readers:
            reader.do("kept.update(going=kept['peer'].read('large', kept['buffer']))")
        while served.stats()["gpu_bytes"] == before:
            time.sleep(0.001)
        for reader in readers:
            os.kill(reader.process.pid, signal.SIGKILL)
            time.sleep(random.random() * 0.01)
    finally:
        for reader in readers:
            reader.end()


with t.Node(**SETTINGS | {"depth": 12}, listen="127.0.0.1:0") as served, t.Node(**SETTINGS) as node:
    content = pattern(SIZE, 1)
    served.expose("large", Device((SIZE,), gpu=1).set(content))
    peer = node.connect(str(served.address))
    into = np.zeros(SIZE, "uint8")
    peer.read("large", into).wait(60)
    before = descriptors()
    while time.monotonic() < end or killed < least:
        kill_readers(served)
        killed += AT_ONCE
        settled(served, peers=1)
        into[:] = 0
        peer.read("large", into).wait(60)
        assert (into == content).all()
        assert len(set(served._carrier.serving._free)) == 12
        assert served.stats()["buffers_held"] == 0
    ends = time.monotonic() + 10
    while descriptors() > before:
        assert time.monotonic() < ends, (before, descriptors())
        time.sleep(0.01)
print(killed, "killed")
