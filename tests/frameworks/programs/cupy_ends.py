"""cupy_ends.py WAY: a process with CuPy's arrays, pinned memory and streams ends in that way."""

import atexit
import builtins
import sys
import threading
import time

import cupy

from glake import integrations

MIB = 1 << 20
way = sys.argv[1]
integrations.install("cupy")


def filled(value: int) -> cupy.ndarray:
    array = cupy.ndarray((MIB,), dtype=cupy.uint8)
    array.data.memset_async(value, MIB)
    return array


array, block = filled(1), cupy.cuda.alloc_pinned_memory(MIB)
stream = cupy.cuda.Stream(non_blocking=True)
if way == "held":  # until the interpreter takes its modules apart
    builtins.held = sys.held = (array, block, stream)
elif way == "cycle":

    class Cycle:
        pass

    cycle = Cycle()
    cycle.me, cycle.holds = cycle, (array, block, stream)
    del array, block, stream
elif way == "atexit":

    @atexit.register
    def last() -> None:
        assert (filled(2).get() == 2).all()
        print("allocated at exit")

elif way == "thread":

    def work() -> None:
        with stream:
            while True:
                filled(3)

    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.2)
elif way == "raised":
    with stream:
        made = filled(4)
        raise ValueError("the program's own")
elif way == "uninstalled":
    integrations.uninstall("cupy")
    del array, block
    assert (filled(5).get() == 5).all()
else:
    raise SystemExit(f"no such way: {way}")
print("ended")
