"""A mixture of experts with unequal, changing loads: 5.5B parameters, bf16, AdamW.

A token's word decides its expert by a fixed random table, another in each layer (hash layers,
Roller and others 2021). Words follow Zipf's law, so that some experts are far busier than others.
"""

import torch
from gpt import Block, Gpt, train
from torch import nn
from torch.nn import functional

WORDS, EXPERTS = 32000, 8


class Expert(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """The feed-forward part of a block: each token goes through one expert of eight."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Expert(width) for _ in range(EXPERTS))
        chosen = torch.Generator("cpu").manual_seed(seed)
        self.table = torch.randint(EXPERTS, (WORDS,), generator=chosen, device="cpu")
        self.order = torch.empty(0)

    def route(self, tokens: torch.Tensor) -> None:
        """Decides, on the host, which of the batch's tokens each expert gets."""
        experts = self.table[tokens.flatten()]
        self.counts = torch.bincount(experts, minlength=EXPERTS).tolist()
        self.order = experts.argsort(stable=True).pin_memory().cuda(non_blocking=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sorted_ = x.flatten(0, 1)[self.order]
        parts = sorted_.split(self.counts)
        made = [expert(part) for expert, part in zip(self.experts, parts, strict=True)]
        return torch.empty_like(sorted_).index_copy(0, self.order, torch.cat(made)).view_as(x)


class MoeBlock(Block):
    def __init__(self, width: int, heads: int, seed: int) -> None:
        super().__init__(width, heads, rank=0)
        del self.up, self.down
        self.mixture = Mixture(width, seed)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mixture(x)


class Moe(Gpt):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__(width, heads, layers=0, words=WORDS)
        self.blocks.extend(MoeBlock(width, heads, seed) for seed in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            block.mixture.route(tokens)
        return super().forward(tokens.cuda())


words = torch.Generator("cpu").manual_seed(3)
zipf = 1 / torch.arange(1, WORDS + 1, dtype=torch.float32, device="cpu")
batches = [torch.multinomial(zipf, 4 * 2048, True, generator=words).view(4, 2048) for _ in range(8)]
train(Moe(2048, 16, 16), batches)
