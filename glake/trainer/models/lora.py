"""LoRA (arXiv 2106.09685): weights are frozen. Beside each, the product of two thin matrices is
trained."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from glake import arguments
from glake.errors import InvalidArgument, WrongType
from glake.trainer.configurable import Configurable, SharePart, Width, child
from glake.trainer.models.attention import Attention
from glake.trainer.models.feed_forward import MLP
from glake.trainer.models.leaf import Leaf, Linear, Projection

_Config = TypeVar("_Config", bound=Configurable.Config)


class LoRA(Projection):
    """base(x) + alpha / rank * up(down(x)); `up` starts at zero, so the model starts unchanged."""

    class Config(Projection.Config):
        base: Projection.Config
        rank: Width = 8
        alpha: float = 16.0
        dropout: SharePart = 0.0
        down: Linear.Config = child(Linear.Config)
        up: Linear.Config = child(Linear.Config, std=0.0)

    def __init__(
        self, config: Config, in_features: int, out_features: int, *, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        self.base = config.base.build(in_features, out_features, gain=gain)
        self.down = config.down.build(in_features, config.rank)
        self.up = config.up.build(config.rank, out_features)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()
        self.scale = config.alpha / config.rank

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        added: Tensor = self.scale * self.up(self.down(self.dropout(x)))
        return out + added.to(out.dtype)


def with_lora(
    config: _Config,
    rank: int = 8,
    alpha: float = 16.0,
    dtype: str | None = None,
    parts: tuple[type[Configurable.Config], ...] = (Attention.Config, MLP.Config),
) -> _Config:
    """Freezes every weight of an experiment and puts LoRA beside projections.

    Args:
        config: of the experiment, or of a part of it. It is changed.
        rank: the rank of LoRA's matrices.
        alpha: the output of LoRA's matrices is scaled by alpha / rank.
        dtype: the frozen weights' type. "bfloat16" takes half the memory, and is enough for them.
            None: the type stays.
        parts: the projections of these parts get LoRA.

    Returns:
        The config.

    Raises:
        WrongType: no config.
        InvalidArgument: there is LoRA already. Its matrices would be frozen and get LoRA
            themselves.
    """
    if not isinstance(config, Configurable.Config):
        raise WrongType(
            f"with_lora: a config of an experiment or of a part, not {arguments.type_name(config)}"
        )
    there: list[LoRA.Config] = []
    config.visit(LoRA.Config, there.append)
    if there:
        raise InvalidArgument(
            f"with_lora: {len(there)} projections have LoRA of rank {there[0].rank} already; call "
            "it once, on the config without, or change what is there: visit(LoRA.Config, ...)"
        )
    config.visit(Leaf.Config, lambda leaf: leaf.set("trainable", False))
    config.visit(Leaf.Config, lambda leaf: leaf.set("dtype", dtype))
    chosen: set[int] = set()  # so that each comes once, even if a part lies within another
    for part in parts:
        config.visit(part, lambda it: it.visit(Linear.Config, lambda at: chosen.add(id(at))))
    changed: _Config = config.visit(
        Linear.Config,
        lambda it: LoRA.Config(base=it, rank=rank, alpha=alpha) if id(it) in chosen else None,
    )
    return changed
