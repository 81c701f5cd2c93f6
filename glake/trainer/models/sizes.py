"""The zoo: models by name, from a million to 13 billion parameters. Functions change any of them to
RoPE or to experts.

The figures are those of the published configurations. Tests compare the parameter counts with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from glake.trainer.configurable import Configurable, unknown
from glake.trainer.models.attention import Attention
from glake.trainer.models.decoder import Block, Decoder
from glake.trainer.models.feed_forward import MLP, FeedForward, MoE, SwiGLU
from glake.trainer.models.leaf import LayerNorm, Linear, RMSNorm
from glake.trainer.models.position import LearnedPosition, Rotary

BYTES = 256  # the vocabulary of byte-level text


def gpt(
    layers: int,
    dim: int,
    heads: int,
    *,
    vocabulary: int = 50257,
    longest: int = 1024,
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu_tanh",
    offset: int = 0,
) -> Decoder.Config:
    """The shape of GPT-2 and OPT: learned positions, layer norms, biases, tied embeddings."""
    block = Block.Config(
        attention=Attention.Config(heads=heads),
        feed_forward=MLP.Config(hidden=4 * dim, activation=activation),
        attention_norm=LayerNorm.Config(),
        feed_forward_norm=LayerNorm.Config(),
    )
    block.visit(Linear.Config, lambda linear: linear.set("bias", True))
    return Decoder.Config(
        vocabulary=vocabulary,
        dim=dim,
        layers=layers,
        position=LearnedPosition.Config(longest=longest, offset=offset),
        block=block,
        norm=LayerNorm.Config(),
    )


def opt(layers: int, dim: int, heads: int) -> Decoder.Config:
    """OPT's shape (arXiv 2205.01068)."""
    return gpt(layers, dim, heads, vocabulary=50272, longest=2048, activation="relu", offset=2)


def llama(
    layers: int,
    dim: int,
    heads: int,
    hidden: int,
    *,
    key_value_heads: int | None = None,
    vocabulary: int = 128256,
    rotary: Rotary.Config | None = None,
    tied: bool = False,
) -> Decoder.Config:
    """Llama's shape: RoPE, RMS norms, SwiGLU, no biases. From Llama 2 on, heads may share keys and
    values."""
    return Decoder.Config(
        vocabulary=vocabulary,
        dim=dim,
        layers=layers,
        block=Block.Config(
            attention=Attention.Config(
                heads=heads,
                key_value_heads=key_value_heads,
                rotary=rotary or Rotary.Config(),
            ),
            feed_forward=SwiGLU.Config(hidden=hidden),
            attention_norm=RMSNorm.Config(),
            feed_forward_norm=RMSNorm.Config(),
        ),
        norm=RMSNorm.Config(),
        head=None if tied else Linear.Config(),
    )


def _llama_3(layers: int, dim: int, heads: int, hidden: int, factor: float, tied: bool) -> Any:
    rotary = Rotary.Config(theta=500000.0, factor=factor)
    return llama(layers, dim, heads, hidden, key_value_heads=8, rotary=rotary, tied=tied)


ZOO: dict[str, Callable[[], Decoder.Config]] = {
    "gpt-tiny": lambda: gpt(4, 144, 4, vocabulary=BYTES, longest=256),
    "gpt-nano": lambda: gpt(6, 384, 6, vocabulary=BYTES, longest=256),
    "gpt-small": lambda: gpt(12, 768, 12),
    "gpt-medium": lambda: gpt(24, 1024, 16),
    "gpt-large": lambda: gpt(36, 1280, 20),
    "gpt-xl": lambda: gpt(48, 1600, 25),
    "opt-125m": lambda: opt(12, 768, 12),
    "opt-1.3b": lambda: opt(24, 2048, 32),
    "opt-13b": lambda: opt(40, 5120, 40),
    "llama-tiny": lambda: llama(4, 128, 4, 384, key_value_heads=2, vocabulary=BYTES),
    "llama-2-7b": lambda: llama(32, 4096, 32, 11008, vocabulary=32000),
    "llama-3-8b": lambda: _llama_3(32, 4096, 32, 14336, 1.0, False),
    "llama-3.1-8b": lambda: _llama_3(32, 4096, 32, 14336, 8.0, False),
    "llama-3.2-1b": lambda: _llama_3(16, 2048, 32, 8192, 32.0, True),
    "moe-tiny": lambda: with_experts(ZOO["llama-tiny"](), experts=4),
}


def model(name: str) -> Decoder.Config:
    """The zoo's model of that name."""
    if name not in ZOO:
        raise unknown("no model", name, "there are", ZOO)
    return ZOO[name]()


def with_rope(config: Configurable.Config, theta: float = 10000.0) -> Any:
    """Replaces learned positions by rotary ones in every decoder of this experiment."""
    config.visit(Decoder.Config, lambda decoder: decoder.set("position", None))
    return config.visit(
        Attention.Config, lambda attention: attention.set("rotary", Rotary.Config(theta=theta))
    )


def with_experts(config: Configurable.Config, experts: int = 8, top_k: int = 2) -> Any:
    """Changes this config: a mixture of experts replaces every feed-forward part. Each expert has
    the shape of the replaced part."""
    return config.visit(
        FeedForward.Config, lambda part: MoE.Config(expert=part, experts=experts, top_k=top_k)
    )
