"""One rank that sees one GPU. It loads and stores in a loop, and checks every byte.

Commands on its input: `state` prints what it has done and by which paths, `die` ends it in the
middle of a copy, `end` closes.
"""

import ctypes
import json
import os
import select
import signal
import sys

import numpy as np

import glake
from glake import _C
from glake import transfer as t

SIZE = 12 << 20


def main() -> None:
    seed = int(os.environ["LOCAL_RANK"])
    engine = t.default_engine()
    block = t.Raw(_C.malloc(SIZE, 0), SIZE, 0)
    numbers = np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)
    found = np.empty(SIZE, np.uint8)
    done = {"copies": 0, "relayed": 0, "wrong": 0, "failed": 0, "over": [], "kinds": {}}
    kind = 0
    while True:
        asked = _asked()
        # In turn: memory that the service reaches (pinned() once it serves us), pageable memory,
        # memory that the driver pinned.
        kind = (kind + 1) % 3
        source = (t.pinned((SIZE,)), np.empty(SIZE, np.uint8), _driver_pinned())[kind]
        source[:] = numbers
        try:
            _copy(block, source, done, asked == "die")
            ctypes.memmove(found.ctypes.data, block.address, SIZE)  # simulated memory can be read
            done["wrong"] += int((found != numbers).any())
            source[:] = 0
            _copy(source, block, done, asked == "die")
            done["wrong"] += int((source != numbers).any())
        except glake.CopyFailed:
            done["failed"] += 1
        numbers[:4096] += 1
        if asked in ("state", "end"):
            stats = engine.stats()
            print(json.dumps({**done, "relays": stats["relays"], **stats["lending"]}), flush=True)
        if asked == "end":
            engine.close()
            return


def _driver_pinned() -> np.ndarray:
    address = _C.host_malloc(SIZE)  # lives as long as the process
    return np.frombuffer((ctypes.c_char * SIZE).from_address(address), np.uint8)


def _copy(dst: object, src: object, done: dict, dying: bool) -> None:
    handle = t.copy(dst, src, stream=t.UNORDERED)
    while dying:
        arrived, size = handle.progress()
        if 0 < arrived < size:
            os.kill(os.getpid(), signal.SIGKILL)
        if handle.done():
            break
    handle.wait()
    over = [p["path"] for p in handle.result().paths if p["bytes"] and p["path"].count(">") > 1]
    done["copies"] += 1
    done["relayed"] += bool(over)
    done["over"] = sorted({*done["over"], *over})


def _asked() -> str:
    return sys.stdin.readline().strip() if select.select([sys.stdin], [], [], 0)[0] else ""


if __name__ == "__main__":
    main()
