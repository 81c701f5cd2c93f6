"""Two processes of PyTorch's CUDA build on one GPU: cooperation.py, which starts the other one.

The other one runs out of memory again and again, while this one captures and replays graphs.
"""

import subprocess
import sys

import torch

import glake
from glake import _C, simcuda
from glake.dryrun import numbers

MIB = 1 << 20
TURNS = 6


def mib(size: int, value: int) -> torch.Tensor:
    return torch.full((size * MIB,), value, dtype=torch.uint8, device="cuda")


def other() -> None:
    """Needs 280 MiB at a time, which are there only if the first process gives memory back."""
    for turn in range(TURNS):
        assert input() == "go"
        tensor = mib(140, turn)
        assert bool((tensor == turn).all())
        del tensor
        torch.cuda.empty_cache()
        print("done", flush=True)


def captured(buffer: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = buffer + 1
        buffer.copy_(made)
    return graph


def main() -> None:
    child = subprocess.Popen(
        [sys.executable, __file__, "other"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    live, counter = mib(40, 7), torch.zeros(MIB, dtype=torch.int32, device="cuda")
    graph = captured(counter)
    for turn in range(TURNS):
        idle = mib(350, turn)
        del idle
        print("go", file=child.stdin, flush=True)
        if turn % 2:
            captured(counter)
        graph.replay()
        assert child.stdout.readline() == "done\n", "the other process ran out of memory"
        assert bool((live == 7).all()) and bool((counter == turn + 1).all())
    assert child.wait(60) == 0
    assert glake.stats()["glake.gave_neighbours_bytes"] >= TURNS * 20 * MIB
    _C.check(0)
    assert simcuda.violations() == []
    print("memory changed hands")


numbers.install()  # kernels compute
if sys.argv[1:] == ["other"]:
    other()
else:
    main()
