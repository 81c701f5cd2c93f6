"""Ranks of torch.multiprocessing.spawn. In the second one cuBLAS finds no memory for itself."""

import torch
from torch.multiprocessing import spawn


def work(rank):
    held = torch.ones((48 if rank else 1) << 18, device="cuda")
    small = torch.ones(64, 64, device="cuda")
    if rank:
        small @ small
    del held


if __name__ == "__main__":
    spawn(work, nprocs=2)
