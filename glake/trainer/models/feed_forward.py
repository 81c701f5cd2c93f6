"""The part of a block that works on each token separately."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glake.errors import InvalidArgument
from glake.trainer.configurable import (
    Configurable,
    Copies,
    Count,
    NonNegative,
    Positive,
    Width,
    child,
)
from glake.trainer.models.leaf import Linear, Projection
from glake.trainer.models.position import Sequences

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class FeedForward(Configurable, nn.Module, abstract=True):
    """The base of feed-forward parts, which map [..., dim] to [..., dim]. They are built with `dim`
    and `gain`. `gain` scales the initial values of the last weights."""

    class Config(Configurable.Config):
        pass


class MLP(FeedForward):
    class Config(FeedForward.Config):
        hidden: Width
        activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"
        up: Projection.Config = child(Linear.Config)
        down: Projection.Config = child(Linear.Config)

    def __init__(self, config: Config, *, dim: int, gain: float = 1.0) -> None:
        super().__init__(config)
        self.activation = _ACTIVATIONS[config.activation]
        self.up = config.up.build(dim, config.hidden)
        self.down = config.down.build(config.hidden, dim, gain=gain)

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        return self.down(self.activation(self.up(x)))


class SwiGLU(MLP):
    """An MLP whose hidden layer is gated (arXiv 2002.05202)."""

    class Config(MLP.Config):
        activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "silu"  # the gate's
        gate: Projection.Config = child(Linear.Config)

    def __init__(self, config: Config, *, dim: int, gain: float = 1.0) -> None:
        super().__init__(config, dim=dim, gain=gain)
        self.gate = config.gate.build(dim, config.hidden)

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class MoE(FeedForward):
    """A mixture of experts. Each token goes to the top_k experts that its router prefers.

    Experts take tables of a fixed number of tokens, so no shape depends on the data. With a
    `capacity` c, an expert takes at most c times its even share. Tokens that do not fit skip the
    expert, and first choices are the last to be dropped. Without a capacity nothing is dropped, and
    every expert's table has a row for every token.

    The balance term is `experts` times the sum, over experts, of the share of choices times the
    mean probability (arXiv 2101.03961). It is 1 if all experts are used equally. Padding tokens
    count in it.
    """

    class Config(FeedForward.Config):
        expert: FeedForward.Config
        experts: Copies = 8
        top_k: Count = 2
        capacity: Positive | None = None
        balance: NonNegative = 0.01  # the weight of the balance term in the loss
        router: Projection.Config = child(Linear.Config)

    def __init__(self, config: Config, *, dim: int, gain: float = 1.0) -> None:
        super().__init__(config)
        if config.top_k > config.experts:
            raise InvalidArgument(f"top_k is {config.top_k}: take 1 to {config.experts} experts")
        self.router = config.router.build(dim, config.experts)
        self.experts = nn.ModuleList(
            config.expert.build(dim=dim, gain=gain) for _ in range(config.experts)
        )

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        config, tokens = self.config, x.flatten(0, -2)
        likes = self.router(tokens).float().softmax(-1)  # [tokens, experts]
        weights, chosen = likes.topk(config.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        first_to_last = chosen.t().reshape(-1)  # every first choice before any second
        picks = first_to_last[:, None] == torch.arange(config.experts, device=x.device)
        shares = picks.float().mean(0)
        balance = config.experts * (shares * likes.mean(0)).sum()
        sequences.add_term("balance", config.balance * balance)

        rows = len(tokens)  # rows of an expert's table
        if config.capacity is not None:
            share = config.capacity * rows * config.top_k / config.experts
            rows = min(rows, math.ceil(share))
        slots = _slots(first_to_last, picks, rows)
        outputs = self._experts_on(tokens, slots, rows, sequences)
        mixed = outputs[slots].unflatten(0, (config.top_k, -1)) * weights.t()[..., None]
        return mixed.sum(0).to(x.dtype).view_as(x)

    def _experts_on(self, tokens: Tensor, slots: Tensor, rows: int, sequences: Sequences) -> Tensor:
        """The experts' rows one after another, and a row of zeros for dropped tokens."""
        count, table = len(tokens), len(self.experts) * rows
        of_choice = torch.arange(count, device=tokens.device).repeat(self.config.top_k)
        # The token that each slot holds. `count` stands for no token. The slot behind the table is
        # for dropped tokens.
        held = slots.new_full((table + 1,), count).scatter(0, slots, of_choice)[:table]
        inputs = F.pad(tokens, (0, 0, 0, 1))[held].unflatten(0, (len(self.experts), rows))
        made = [expert(inputs[at], sequences) for at, expert in enumerate(self.experts)]
        return F.pad(torch.cat(made), (0, 0, 0, 1))


def _slots(chosen: Tensor, picks: Tensor, rows: int) -> Tensor:
    """The row of each choice in the joined tables of all experts. If no row is free, it is the one
    behind the tables.

    Args: chosen [choices] int64; picks [choices, experts] bool, its one-hot form.
    """
    place = picks.cumsum(0).gather(1, chosen[:, None]).squeeze(1) - 1
    return torch.where(place < rows, chosen * rows + place, picks.shape[1] * rows)
