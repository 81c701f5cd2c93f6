"""Forks while threads allocate."""

import os
import threading

import torch

import glake  # noqa: F401
from glake.allocator import emulation

kept = [torch.full((50_000,), i) for i in range(20)]
# Once before the threads: torch sets up each operator at its first use, and a child forked
# in the middle of that would wait for it for ever, with or without glake.
assert bool((kept[1] == 1).all())
done, wrong = threading.Event(), []


def churn(seed):
    turn = 0
    while not done.is_set():
        turn += 1
        tensor = torch.full((1000 * (turn % 50 + 1),), seed * turn)
        if not bool((tensor == seed * turn).all()):
            wrong.append(turn)


threads = [threading.Thread(target=churn, args=(seed,)) for seed in (1, 2, 3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        right = all(bool((tensor == i).all()) for i, tensor in enumerate(kept))
        os._exit(0 if right and emulation.counters().state == "forked" else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
for thread in threads:
    thread.join()
print(codes, wrong, emulation.counters().failed_frees)
