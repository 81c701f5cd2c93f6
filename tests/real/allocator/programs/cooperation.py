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


def main() -> None:
    child = subprocess.Popen(
        [sys.executable, __file__, "other"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    live, counter = mib(40, 7), torch.zeros(MIB, dtype=torch.int32, device="cuda")
    for turn in range(TURNS):
        idle = mib(350, turn)
        del idle
        # The other process asks during a capture. (torch.cuda.graph() would empty the cache first.)
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            graph.capture_begin()
            counter.copy_(counter + 1)
            print("go", file=child.stdin, flush=True)
            assert child.stdout.readline() == "done\n", "the other process ran out of memory"
            counter.copy_(counter + 0)
            graph.capture_end()
        graph.replay()
        assert bool((live == 7).all()) and bool((counter == turn + 1).all())
    assert child.wait(60) == 0
    assert glake.stats()["glake.gave_neighbours_bytes"] >= TURNS * 100 * MIB
    _C.check(0)
    assert simcuda.violations() == []
    print("memory changed hands")


numbers.install()  # kernels compute
if sys.argv[1:] == ["other"]:
    other()
else:
    main()
