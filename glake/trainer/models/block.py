"""A layer of a decoder: attention, then the feed-forward part, each normed first and added."""

from __future__ import annotations

from torch import Tensor, nn

from glake.trainer.configurable import Configurable, child
from glake.trainer.models.attention import Attention
from glake.trainer.models.feed_forward import FeedForward
from glake.trainer.models.norm import Norm, RMSNorm
from glake.trainer.models.position import Sequences


class Block(Configurable, nn.Module):
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
