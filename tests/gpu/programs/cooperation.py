"""Two processes on one GPU that give idle memory back for each other (GLAKE_COOPERATE)."""

from __future__ import annotations

import subprocess
import sys
import time

import torch
from checks import DEVICE, MIB, main

import glake

ENVIRONMENT = {"GLAKE_COOPERATE": "1"}
TURNS = 3


def filled(size: int, value: int) -> torch.Tensor:
    return torch.full((size // 4,), value, dtype=torch.int32, device=DEVICE)


def serve() -> None:
    """Runs in the other process: each line is a size that it must get, with right contents."""
    torch.zeros(1, device=DEVICE)
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        tensor = filled(int(line), 5)
        assert bool((tensor == 5).all())
        del tensor
        torch.cuda.empty_cache()
        print(f"{time.perf_counter() - began:.3f}", flush=True)


def check_memory_changes_hands_beside_a_capture() -> None:
    other = subprocess.Popen(
        [sys.executable, __file__, "other"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None and other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    live, counter = filled(64 * MIB, 7), torch.zeros(1024, device=DEVICE)
    # The comparison in the other process makes a tensor of a quarter of the size.
    size = torch.cuda.mem_get_info(DEVICE)[0] // 10 * 6
    for turn in range(TURNS):
        idle = filled(size, turn)
        del idle
        # torch.cuda.graph() would empty the cache first.
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(DEVICE)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            graph.capture_begin()
            print(size, file=other.stdin, flush=True)
            counter.add_(1)
            seconds = other.stdout.readline()
            graph.capture_end()
        graph.replay()
        assert seconds, "the other process ran out of memory"
        print(f"turn {turn}: {size / 2**30:.1f} GiB for the other process in {seconds.strip()} s")
        assert bool((live == 7).all()) and bool((counter == turn + 1).all())
        del graph
    assert glake.stats()["glake.gave_neighbours_bytes"] >= size // 4
    other.stdin.close()
    assert other.wait(60) == 0


if __name__ == "__main__":
    if sys.argv[1:] == ["other"]:
        serve()
    else:
        main(globals())
