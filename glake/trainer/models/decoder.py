"""A decoder-only transformer."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glake.trainer.configurable import Configurable, Copies, Count, Width, child
from glake.trainer.models.attention import Attention
from glake.trainer.models.feed_forward import FeedForward
from glake.trainer.models.leaf import Embedding, Norm, Projection, RMSNorm
from glake.trainer.models.position import LearnedPosition, Sequences

IGNORED = -100  # a target that does not count in the loss


class Block(Configurable, nn.Module):
    """Attention, then the feed-forward part. Each part's input is normed, and its output is added
    to the input."""

    class Config(Configurable.Config):
        attention: Attention.Config
        feed_forward: FeedForward.Config
        attention_norm: Norm.Config = child(RMSNorm.Config)
        feed_forward_norm: Norm.Config = child(RMSNorm.Config)

    def __init__(self, config: Config, *, dim: int, gain: float = 1.0) -> None:
        super().__init__(config)
        self.attention_norm = config.attention_norm.build(dim=dim)
        self.attention = config.attention.build(dim=dim, gain=gain)
        self.feed_forward_norm = config.feed_forward_norm.build(dim=dim)
        self.feed_forward = config.feed_forward.build(dim=dim, gain=gain)

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """x: [B, T, dim]."""
        x = x + self.attention(self.attention_norm(x), sequences)
        return x + self.feed_forward(self.feed_forward_norm(x), sequences)


class LossSum(NamedTuple):
    """`total` is the sum over tokens. The loss is its mean, total / count.

    `terms` has what each part except the cross-entropy adds to the mean, by name ("balance").
    """

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # tokens that have a target
    terms: dict[str, Tensor]


class Decoder(Configurable, nn.Module):
    """Embedding, blocks, norm, and a head. Without a head the embedding serves as one (tied).

    `blocks` are the units that sharding and recomputation work on.
    """

    class Config(Configurable.Config):
        vocabulary: Width
        dim: Width
        layers: Copies
        block: Block.Config
        embedding: Embedding.Config = child(Embedding.Config)
        position: LearnedPosition.Config | None = None
        norm: Norm.Config = child(RMSNorm.Config)
        head: Projection.Config | None = None
        loss_rows: Count | None = None  # a loss computes the logits of so many tokens at a time

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        gain = (2 * config.layers) ** -0.5  # so that the sum of all blocks starts at unit scale
        self.embedding = config.embedding.build(config.vocabulary, config.dim)
        self.position = config.position.build(dim=config.dim) if config.position else None
        self.blocks = nn.ModuleList(
            config.block.build(dim=config.dim, gain=gain) for _ in range(config.layers)
        )
        self.norm = config.norm.build(dim=config.dim)
        self.head = config.head.build(config.dim, config.vocabulary) if config.head else None

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, *, segments: Tensor | None = None
    ) -> Tensor | LossSum:
        """Returns logits [B, T, vocabulary]. With targets, returns the loss of those that are not
        IGNORED.

        Args: tokens, targets, segments: [B, T] int64. Documents that share a row have different
        `segments` and do not see one another. Positions begin at 0 in each document.
        """
        sequences = Sequences.of(tokens, segments)
        x = self.embedding(tokens)
        if self.position is not None:
            x = x + self.position(sequences.positions)
        for block in self.blocks:
            x = block(x, sequences)
        x = self.norm(x)
        return self._logits(x) if targets is None else self._loss(x, targets, sequences)

    def _logits(self, x: Tensor) -> Tensor:
        if self.head is None:
            weight = self.embedding.weight
            return F.linear(x.to(weight.dtype), weight)
        return self.head(x)

    def _loss(self, x: Tensor, targets: Tensor, sequences: Sequences) -> LossSum:
        x, targets = x.flatten(0, 1), targets.flatten()
        rows = self.config.loss_rows
        if rows is None or rows >= len(targets):
            total = self._cross_entropy(x, targets)
        else:
            pieces = zip(x.split(rows), targets.split(rows), strict=True)
            total = torch.stack([self._recomputed(*piece) for piece in pieces]).sum()
        count = (targets != IGNORED).sum()
        terms = sequences.take_terms()
        for value in terms.values():
            total = total + value * count
        return LossSum(total, count, terms)

    def _recomputed(self, x: Tensor, targets: Tensor) -> Tensor:
        """Computes _cross_entropy() without keeping its logits. The backward pass computes them
        again."""
        return checkpoint(
            self._cross_entropy, x, targets, use_reentrant=False, preserve_rng_state=False
        )

    def _cross_entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self._logits(x).float()
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
