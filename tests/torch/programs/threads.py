"""Eight threads allocate and stamp tensors, hand them to each other, check and free them."""

import queue
import random
import threading

import torch

import glake
from glake.allocator import emulation

wrong = 0
handed: "queue.SimpleQueue[tuple[int, torch.Tensor]]" = queue.SimpleQueue()


def check(stamp: int, tensor: torch.Tensor) -> None:
    global wrong
    if tensor.numel() and not bool((tensor == stamp).all()):
        wrong += 1


def work(seed: int) -> None:
    random_ = random.Random(seed)
    mine: list[tuple[int, torch.Tensor]] = []
    for turn in range(600):
        stamp = seed * 1000 + turn
        size = random_.choice((0, 1, 100, 3000, 70000, 300000))
        mine.append((stamp, torch.full((size,), stamp, dtype=torch.int32)))
        if len(mine) > 12:
            handed.put(mine.pop(random_.randrange(len(mine))))
        if random_.random() < 0.9 and not handed.empty():
            check(*handed.get())
    for stamp, tensor in mine:
        check(stamp, tensor)


threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
while not handed.empty():
    check(*handed.get())
print(wrong, "wrong")
print(emulation.counters().failed_frees, "failed frees")
print(glake.stats()["requested_bytes.all.current"], "bytes live")
