"""Prints the mode of this process and of a spawned child."""

import torch
import torch.multiprocessing as multiprocessing

from glake.allocator.torch import mode


def child(rank: int) -> None:
    torch.ones(1000).sum()
    print(mode(), flush=True)


if __name__ == "__main__":
    child(0)
    multiprocessing.spawn(child, nprocs=1)
