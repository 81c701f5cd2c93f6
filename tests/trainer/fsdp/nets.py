"""Small models for the tests of FSDP, with shapes that no number of ranks divides."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 37


class Block(nn.Module):
    """A residual block with a gate, of odd shapes."""

    def __init__(self, dim=13, hidden=29):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Spare(Block):
    """A block with a layer that is not always used."""

    def __init__(self, dim=13, hidden=29):
        super().__init__(dim, hidden)
        self.spare = nn.Linear(dim, dim)
        self.used = True

    def forward(self, x):
        x = super().forward(x)
        return x + self.spare(x) if self.used else x


class MoE(nn.Module):
    """Each token takes the likeliest two of the experts, so an expert may get no token."""

    def __init__(self, dim=13, hidden=17, experts=3):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(Block(dim, hidden) for _ in range(experts))

    def forward(self, x):
        weights, chosen = self.router(self.norm(x)).softmax(-1).topk(2, -1)
        result = x
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1)
            picked = share.nonzero(as_tuple=True)
            part = expert(x[picked]) * share[picked].unsqueeze(-1)
            result = result.index_put(picked, part.to(result.dtype), accumulate=True)
        return result


class LoRA(nn.Module):
    """A frozen linear layer and a trained correction."""

    def __init__(self, dim=13, rank=2, base=torch.float32):
        super().__init__()
        self.base = nn.Linear(dim, dim, dtype=base).requires_grad_(False)
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)

    def forward(self, x):
        base = self.base(x.to(self.base.weight.dtype)).to(x.dtype)
        return x + torch.tanh(base + self.up(self.down(x)))


class Net(nn.Module):
    """A model of blocks of class `kind`, which makes logits of tokens."""

    def __init__(self, kind=Block, layers=3, dim=13, tied=False, twice=False, frozen=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.blocks = nn.ModuleList(kind(dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)
        self.twice = twice
        self.fail_at = None  # the number of the block before which forward() raises
        if tied:
            self.head.weight = self.embedding.weight
        if frozen:
            for part in (self.embedding, self.norm, self.head):
                part.requires_grad_(False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            if number == self.fail_at:
                raise RuntimeError("made to fail")
            x = block(x)
            if self.twice and number == 1:
                x = block(x)
        return self.head(self.norm(x))


def loss_of(logits, targets):
    """The sum over tokens, in float32."""
    flat = logits.float().view(-1, VOCABULARY)
    return functional.cross_entropy(flat, targets.reshape(-1), reduction="sum")
