"""glake.transfer.torch_copies(): which of torch's copies it takes. All must have equal results."""

import pytest
import torch

import glake
from glake import errors, transfer

glake.enable()
COUNT = 1 << 20  # 4 MiB of float32


def carried() -> int:
    told = transfer.stats()
    return int(told["bytes"] + told["plain_bytes"])


def taken(work) -> int:
    before = carried()
    with transfer.torch_copies():
        work()
    return carried() - before


there = torch.randn(COUNT)  # in the emulated GPU's memory
away = transfer.pinned(COUNT, torch.float32)
pageable = torch.frombuffer(bytearray(4 * COUNT), dtype=torch.float32)
transfer.default_engine()

assert taken(lambda: away.copy_(there)) == 4 * COUNT and torch.equal(away, there)
back = torch.zeros(COUNT)
assert taken(lambda: back.copy_(away, non_blocking=True)) == 4 * COUNT and torch.equal(back, there)
assert taken(lambda: back.view(1024, 1024).copy_(away.view(1024, 1024))) == 4 * COUNT
assert torch.equal(back, there)
version = back._version
taken(lambda: back.copy_(away))
assert back._version > version  # autograd sees the write

left = {
    "GPU to GPU": lambda: back.copy_(there),
    "pageable": lambda: pageable.copy_(there),
    "small": lambda: away[:1000].copy_(there[:1000]),
    "another dtype": lambda: away.copy_(there.double()),
    "another shape": lambda: away.view(1024, 1024).copy_(there[:1024]),
    "gaps": lambda: away.view(1024, 1024).t().copy_(there.view(1024, 1024)),
    "a number": lambda: away[:1].fill_(3.0),
    "to a dtype": lambda: away.to(torch.float64),
    "to itself": lambda: away.to("cpu"),
    "sparse": lambda: torch.eye(2000).to_sparse().copy_(torch.eye(2000).to_sparse()),
    "by its name": lambda: away.copy_(other=there),
    "to another dtype, sparse": lambda: torch.eye(2000).to_sparse_csr().to(torch.float64),
    "a transform": lambda: torch.func.vmap(lambda x: torch.zeros_like(x).copy_(x))(
        there.view(2, -1)
    ),
    "no memory": lambda: torch.empty(COUNT, device="meta").copy_(away),
}
for name, work in left.items():
    assert taken(work) == 0, name
assert torch.equal(pageable, there)

weight = torch.randn(COUNT, requires_grad=True)
with transfer.torch_copies():  # autograd records the second, so torch makes it
    away.copy_(weight.detach())
    copied = torch.empty(COUNT).copy_(weight)
copied.sum().backward()
assert weight.grad is not None and weight.grad.eq(1).all()
with transfer.torch_copies(), torch.no_grad():
    weight.copy_(away)
with pytest.raises(RuntimeError), transfer.torch_copies():
    weight.copy_(away)  # in place, into a leaf: torch's error
for wrong in (-1, "many"):
    with pytest.raises(errors.InvalidArgument):
        transfer.torch_copies(wrong)
assert taken(lambda: None) == 0
with transfer.torch_copies("64MiB"):
    before = carried()
    away.copy_(there)
assert carried() == before
print("copied")
