"""Steps are those of the first optimizer, until the program marks them itself."""

import torch

import glake
from glake.allocator import stats

marked = []
stats._C = type("Probe", (), {"mark_step": staticmethod(marked.append)})
first, second = (torch.optim.SGD([torch.ones(1, requires_grad=True)]) for _ in range(2))
for _ in range(3):
    first.step(), second.step()
print(len(marked))
glake.step()
first.step()
print(len(marked))
