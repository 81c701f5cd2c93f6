"""Forks while a region is paused."""

import os

import torch

import glake

with glake.region("weights"):
    paused = torch.full((1 << 20,), 3.0)
other = torch.full((1000,), 5.0)
glake.pause("weights")
child = os.fork()
if child == 0:
    other.add_(1)
    os._exit(0 if torch.ones(1000).sum() == 1000 and other.sum() == 6000 else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
glake.resume("weights")
print(status, other.sum().item(), paused.sum().item() == 3 << 20)
