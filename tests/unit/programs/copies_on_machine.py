"""Copies between two GPUs of the simulated machine again and again, and checks what arrived.

    copies_on_machine.py SRC DST BYTES ROUNDS

Prints how many chunks each path of the last copy had.
"""

import json
import sys

import numpy as np

from glake import _C
from glake import transfer as t

src, dst, size, rounds = map(int, sys.argv[1:])
dice = np.random.default_rng(1)
with t.Engine():
    source, target = (t.Raw(_C.malloc(size, gpu), size, gpu) for gpu in (src, dst))
    for _ in range(rounds):
        sent, received = dice.integers(0, 256, size, np.uint8), np.zeros(size, np.uint8)
        t.copy(source, sent).wait()
        result = t.copy(target, source).wait().result()
        t.copy(received, target).wait()
        assert np.array_equal(sent, received)
    print(json.dumps({path["path"]: path["chunks"] for path in result.paths}))
