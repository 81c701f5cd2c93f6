"""Forks before the first allocation."""

import os

import torch

import glake  # noqa: F401

child = os.fork()
total = torch.ones(1000).sum().item()
if child == 0:
    os._exit(total != 1000)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), total)
