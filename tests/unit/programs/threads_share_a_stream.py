"""Threads copy between two GPUs of the simulated machine in one stream, and check what arrived.

    threads_share_a_stream.py SRC DST THREADS COPIES

Each copy has a size of its own, so that it needs other buffers than the one before it. Long ones
(a millisecond and more) also need other streams.
"""

import sys
import threading

import numpy as np

from glake import _C, simcuda
from glake import transfer as t
from glake.transfer.bench.machine import Machine

src, dst, threads, copies = map(int, sys.argv[1:])
MOST = 112 << 20
_C.malloc(1, src)  # opens the driver
stream = Machine([[0]], MOST).stream(src, "shared")
wrong: list[str] = []


def copy(number: int) -> None:
    dice = np.random.default_rng(number)
    source, target = (_C.malloc(MOST, gpu) for gpu in (src, dst))
    sent, received = dice.integers(0, 256, MOST, np.uint8), np.zeros(MOST, np.uint8)
    t.copy(t.Raw(source, MOST, src), sent).wait()
    done = 0
    while done < copies:
        under_way = []
        for _ in range(dice.integers(1, 4)):
            size = int(dice.integers(1, MOST))
            pair = t.Raw(target, size, dst), t.Raw(source, size, src)
            under_way.append(t.copy(*pair, stream=(src, stream)))
            done += 1
        for each in under_way:
            each.wait()
    t.copy(t.Raw(target, MOST, dst), t.Raw(source, MOST, src), stream=(src, stream)).wait()
    t.copy(received, t.Raw(target, MOST, dst)).wait()
    if not np.array_equal(sent, received):
        wrong.append(f"thread {number}")


with t.Engine():
    running = [threading.Thread(target=copy, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    print(wrong or "all arrived", simcuda.violations())
