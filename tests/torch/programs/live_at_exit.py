"""Exits with live tensors in cycles, hooks and modules."""

import torch

import glake

glake.enable(driver="sim")
kept = [torch.ones(1000) for _ in range(100)]
cycle = [torch.ones(10)]
cycle.append(cycle)
torch.stash = torch.ones(1000)  # freed after most modules are gone, if at all
loss = torch.nn.Linear(10, 10)(torch.ones(5, 10)).sum()
loss.backward()  # leaves autograd's thread behind
torch.randn(3, requires_grad=True).register_hook(lambda grad, kept=kept: None)
