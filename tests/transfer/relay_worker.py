"""One process of several. It copies to its GPU in a loop, and checks every byte.

Commands on its input: `state` prints what it has done and is lent, `fork` makes a child that does
nothing, `die` ends the process in the middle of a copy, `end` closes.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
import warnings

import numpy as np

from glake import _C
from glake import transfer as t

SIZE = 24 << 20


def main() -> None:
    warnings.simplefilter("always")
    gpu = int(os.environ["LOCAL_RANK"])
    engine = t.default_engine()
    block = t.Raw(_C.malloc(SIZE, gpu), SIZE, gpu)
    source = t.pinned((SIZE,), "uint8")
    source[:] = np.random.default_rng(gpu).integers(0, 256, SIZE, dtype=np.uint8)
    found = np.empty(SIZE, np.uint8)
    done = {"copies": 0, "relayed": 0, "over": [], "wrong": 0}
    dying = False
    while True:
        asked = _asked()
        dying = dying or asked == "die"
        if asked == "fork":
            _fork()
        source[:4096] += 1
        handle = t.copy(block, source)
        if dying:
            _die_within(handle)
        handle.wait()
        ctypes.memmove(found.ctypes.data, block.address, SIZE)  # simulated memory can be read
        over = {p["path"] for p in handle.result().paths if p["bytes"] and p["path"].count(">") > 1}
        done["copies"] += 1
        done["relayed"] += bool(over)
        done["over"] = sorted(over)
        done["wrong"] += int((found != source).any())
        if asked in ("state", "end"):
            stats = engine.stats()
            print(json.dumps({**done, "relays": stats["relays"], **stats["lending"]}), flush=True)
        if asked == "end":
            engine.close()
            return


def _asked() -> str:
    return sys.stdin.readline().strip() if select.select([sys.stdin], [], [], 0)[0] else ""


def _fork() -> None:
    child = os.fork()
    if child == 0:
        time.sleep(120)
        os._exit(0)
    print(json.dumps({"wrong": 0, "child": child}), flush=True)


def _die_within(handle: t.Transfer) -> None:
    while True:
        arrived, size = handle.progress()
        if 0 < arrived < size:
            os.kill(os.getpid(), signal.SIGKILL)
        if handle.done():
            return


if __name__ == "__main__":
    main()
