"""Normalisation of the last dimension."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from glake.trainer.configurable import NonNegative
from glake.trainer.models.leaf import Leaf


class Norm(Leaf, abstract=True):
    """Base of the norms; each has a weight of ones for `dim` features."""

    class Config(Leaf.Config):
        epsilon: NonNegative = 1e-5


class RMSNorm(Norm):
    """By the root of the mean square (arXiv 1910.07467)."""

    def __init__(self, config: Norm.Config, *, dim: int) -> None:
        super().__init__(config)
        self.weight = self.parameter(dim)
        self.begin()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        return F.rms_norm(x, x.shape[-1:], self.weight, self.config.epsilon)


class LayerNorm(Norm):
    """By mean and standard deviation, with a bias."""

    def __init__(self, config: Norm.Config, *, dim: int) -> None:
        super().__init__(config)
        self.weight, self.bias = self.parameter(dim), self.parameter(dim)
        self.begin()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.config.epsilon)
