"""exits.py CASE: ends in the way CASE while memory is held. It must end cleanly and silently."""

from __future__ import annotations

import sys
import threading

import torch

DEVICE = torch.device("cuda", 0)
kept = [torch.ones(1000, device=DEVICE), torch.ones(5 << 20, device=DEVICE)]


def tensors() -> None:
    """The tensors of the module are enough."""


def threads() -> None:
    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(torch.ones(3 << 20, device=DEVICE))

    started = [threading.Thread(target=work) for _ in range(3)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def graph() -> None:
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        y = kept[1] * 2
    made.replay()
    globals()["graph_kept"] = (made, y)


def pool() -> None:
    made = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(made):
        kept.append(torch.ones(2 << 20, device=DEVICE))
    globals()["pool_kept"] = made


def pinned() -> None:
    kept.append(torch.ones(1 << 20).pin_memory())
    kept.append(kept[-1].to(DEVICE, non_blocking=True))


def work_pending() -> None:
    torch.cuda._sleep(200_000_000)
    kept.append(kept[1] * 2)


def leaving() -> None:
    sys.exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
