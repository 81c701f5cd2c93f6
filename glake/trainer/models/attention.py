"""Causal self-attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from glake.errors import InvalidArgument
from glake.trainer.configurable import Configurable, Width, child
from glake.trainer.models.leaf import Linear, Projection
from glake.trainer.models.position import Rotary, Sequences


class Attention(Configurable, nn.Module):
    """Attention with several heads. Groups of heads share keys and values if key_value_heads is
    smaller."""

    class Config(Configurable.Config):
        heads: Width
        key_value_heads: Width | None = None  # None: as many as heads
        head_dim: Width | None = None  # None: dim / heads
        rotary: Rotary.Config | None = None
        query: Projection.Config = child(Linear.Config)
        key: Projection.Config = child(Linear.Config)
        value: Projection.Config = child(Linear.Config)
        output: Projection.Config = child(Linear.Config)

    def __init__(self, config: Config, *, dim: int, gain: float = 1.0) -> None:
        super().__init__(config)
        shared = config.key_value_heads or config.heads
        if config.heads % shared:
            raise InvalidArgument(
                f"{config.heads} heads do not make groups of {shared} keys: take key_value_heads "
                "that divide heads"
            )
        if config.head_dim is None and dim % config.heads:
            raise InvalidArgument(
                f"a width of {dim} is no multiple of {config.heads} heads: set head_dim"
            )
        self.head_dim = config.head_dim or dim // config.heads
        if config.rotary and self.head_dim % 2:
            raise InvalidArgument(
                f"head_dim = {self.head_dim}: rotary positions turn pairs of features; take an "
                "even one, or other heads"
            )
        self.shares_keys = shared != config.heads
        self.query = config.query.build(dim, config.heads * self.head_dim)
        self.key = config.key.build(dim, shared * self.head_dim)
        self.value = config.value.build(dim, shared * self.head_dim)
        self.output = config.output.build(config.heads * self.head_dim, dim, gain=gain)
        self.rotary = config.rotary.build() if config.rotary else None

    def forward(self, x: Tensor, sequences: Sequences) -> Tensor:
        """x: [B, T, dim]."""
        query, key, value = (
            made.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for made in (self.query(x), self.key(x), self.value(x))
        )
        key, value = key.to(query.dtype), value.to(query.dtype)
        if self.rotary is not None:
            query, key = self.rotary(query, sequences), self.rotary(key, sequences)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=sequences.mask,
            is_causal=sequences.mask is None,
            enable_gqa=self.shares_keys,
        )
        return self.output(mixed.transpose(1, 2).flatten(-2))
