"""The position of each token, and the two ways of giving it to a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from glake.errors import InvalidArgument
from glake.trainer.configurable import Configurable, Count, NonNegative, Positive, Width, Within
from glake.trainer.models.leaf import Embedding


class Sequences:
    """What layers need to know about the current batch. Each forward pass makes a new object.

    positions: [T] or [B, T] int64, the place of each token in its document.
    mask: None if each token sees all tokens before it; else [B, 1, T, T] bool, True for what it
    sees.
    """

    def __init__(self, positions: Tensor, mask: Tensor | None) -> None:
        self.positions = positions
        self.mask = mask
        self._memo: dict[object, tuple[Tensor, ...]] = {}
        self._terms: dict[str, list[Tensor]] | None = {}

    @classmethod
    def of(cls, tokens: Tensor, segments: Tensor | None) -> Sequences:
        """`segments` [B, T] numbers the documents of a row. Without it a row is one document."""
        at = torch.arange(tokens.shape[1], device=tokens.device)
        if segments is None:
            return cls(at, None)
        seen = (segments[:, :, None] == segments[:, None, :]) & (at[:, None] >= at)
        begins = F.pad(segments[:, 1:] != segments[:, :-1], (1, 0))
        return cls(at - torch.where(begins, at, 0).cummax(1).values, seen[:, None])

    def once(self, key: object, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """The result of `make`. Layers that use the same key share it."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def add_term(self, name: str, value: Tensor) -> None:
        """Adds a term, per token, to the loss. After take_terms() it does nothing, because
        recomputation calls it a second time."""
        if self._terms is not None:
            self._terms.setdefault(name, []).append(value)

    def take_terms(self) -> dict[str, Tensor]:
        taken, self._terms = self._terms or {}, None
        return {name: torch.stack(values).sum() for name, values in taken.items()}


class LearnedPosition(Embedding):
    """A learned row for each position, which is added to the token's embedding."""

    class Config(Embedding.Config):
        longest: Width = 1024
        offset: Annotated[int, Within(0, 1 << 24)] = 0  # rows before position 0: OPT has two

    def __init__(self, config: Config, *, dim: int) -> None:
        super().__init__(config, config.longest + config.offset, dim)

    def forward(self, positions: Tensor) -> Tensor:
        if positions.shape[-1] > self.config.longest:
            raise InvalidArgument(
                f"a sequence of {positions.shape[-1]} tokens; this model has {self.config.longest} "
                "learned positions: cut the sequences (data.length) or set position.longest"
            )
        return super().forward(positions + self.config.offset)


class Rotary(Configurable):
    """Turns queries and keys by angles that grow with the position (RoPE, arXiv 2104.09864).

    Feature i is paired with feature i + head_dim / 2, as in Llama checkpoints of transformers. With
    a `factor` other than 1, low frequencies are divided by it, as in Llama 3.1. A frequency that
    makes fewer than `slow_turns` turns in `trained_length` positions is divided by `factor`. One
    that makes more than `fast_turns` is unchanged. For the others the divisor lies in between.
    """

    class Config(Configurable.Config):
        theta: Positive = 10000.0
        factor: Positive = 1.0
        slow_turns: NonNegative = 1.0
        fast_turns: NonNegative = 4.0
        trained_length: Count = 8192
        longest: Count | None = None  # read from a checkpoint, only to be written to an export

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.slow_turns >= config.fast_turns:
            raise InvalidArgument(
                f"slow_turns is {config.slow_turns}: take less than {config.fast_turns}, fast_turns"
            )

    def __call__(self, x: Tensor, sequences: Sequences) -> Tensor:
        """x: [B, heads, T, head_dim]."""
        size = x.shape[-1]
        key = (size, *vars(self.config).values())
        cosine, sine = sequences.once(key, lambda: self._angles(size, sequences.positions))
        left, right = x.float().chunk(2, -1)
        turned = (left * cosine - right * sine, right * cosine + left * sine)
        return torch.cat(turned, -1).to(x.dtype)

    def _angles(self, size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        powers = torch.arange(0, size, 2, device=positions.device).float() / size
        frequencies = 1.0 / config.theta**powers
        if config.factor != 1.0:
            turns = config.trained_length * frequencies / (2 * math.pi)
            kept = (turns - config.slow_turns) / (config.fast_turns - config.slow_turns)
            kept = kept.clamp(0.0, 1.0)
            frequencies = frequencies * (kept + (1 - kept) / config.factor)
        angles = positions[..., None].float() * frequencies  # [T, size / 2] or [B, T, size / 2]
        if angles.ndim == 3:
            angles = angles[:, None]
        return angles.cos(), angles.sin()
