"""The model of the jobs: a GPT with recomputed blocks, in bf16, and LoRA for its linear layers."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Lora(nn.Module):
    """A frozen linear layer and the product of two thin ones beside it."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

        def linear(taken: int, given: int) -> nn.Module:
            made = nn.Linear(taken, given, bias=False)
            return Lora(made, rank) if rank else made

        self.qkv = linear(width, 3 * width)
        self.out = linear(width, width)
        self.up = linear(width, 4 * width)
        self.down = linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.extend(x)[0]

    def extend(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The block's result, and the keys and values of `cache` followed by those of x."""
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.norms[1](x)), (k, v)

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Gpt(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, words: int, rank: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, rank) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        if rank:
            self.embedding.requires_grad_(False)
            self.head.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        if not x.requires_grad:
            x.requires_grad_()  # recomputation needs an input with a gradient
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def train(model: Gpt, batches: list, quiet: bool = False) -> None:
    """Makes a step for each batch. A batch is tokens, or (batch, length) for as many zeros."""
    weights = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, fused=True)
    for step, batch in enumerate(batches):
        tokens = torch.zeros(batch, dtype=torch.long) if isinstance(batch, tuple) else batch
        logits = model(tokens).flatten(0, 1).float()
        functional.cross_entropy(logits, tokens.flatten().cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not quiet:
            print(f"step {step} of {len(batches)}", flush=True)


torch.set_default_device("cuda")
torch.set_default_dtype(torch.bfloat16)
