"""Leaves, which are the only modules with parameters of their own.

A leaf gives its parameters their first values in reset_parameters(). That is at the end of its
constructor, or later if it was built on the meta device. Nothing else owns parameters. So a model
that is materialised leaf by leaf, in the order of modules(), gets the same values as one built in
place.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glake.trainer.configurable import Configurable, NonNegative


class Leaf(Configurable, nn.Module, abstract=True):
    class Config(Configurable.Config):
        trainable: bool = True
        # The types in which parameters are kept. Inputs are cast to them. None: torch's default.
        dtype: Literal["float32", "bfloat16"] | None = None

    def parameter(self, *shape: int) -> nn.Parameter:
        dtype = getattr(torch, self.config.dtype) if self.config.dtype else None
        return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=self.config.trainable)

    def begin(self) -> None:
        """Draws the first values, unless the leaf is on the meta device. Drawing there takes longer
        than building the model."""
        if not any(each.is_meta for each in self.parameters(recurse=False)):
            self.reset_parameters()

    def reset_parameters(self) -> None:
        raise NotImplementedError


class Projection(Configurable, nn.Module, abstract=True):
    """The base of layers that map the last dimension from in_features to out_features, with which
    they are built. `gain` scales the standard deviation of the weights at the start."""

    class Config(Configurable.Config):
        pass


class Linear(Projection, Leaf):
    class Config(Projection.Config, Leaf.Config):
        bias: bool = False
        std: NonNegative = 0.02

    def __init__(
        self, config: Config, in_features: int, out_features: int, *, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        self.gain = gain
        self.weight = self.parameter(out_features, in_features)
        self.bias = self.parameter(out_features) if config.bias else None
        self.begin()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.config.std * self.gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class Embedding(Leaf):
    """A row of `dim` numbers for each of `count` indices."""

    class Config(Leaf.Config):
        std: NonNegative = 0.02

    def __init__(self, config: Config, count: int, dim: int) -> None:
        super().__init__(config)
        self.weight = self.parameter(count, dim)
        self.begin()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.config.std)

    def forward(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight)


class Norm(Leaf, abstract=True):
    """The base of the norms of `dim` features."""

    class Config(Leaf.Config):
        epsilon: NonNegative = 1e-5

    biased = False

    def __init__(self, config: Config, *, dim: int) -> None:
        super().__init__(config)
        self.weight = self.parameter(dim)
        self.bias = self.parameter(dim) if self.biased else None
        self.begin()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class RMSNorm(Norm):
    """A norm by the root of the mean square (arXiv 1910.07467)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        return F.rms_norm(x, x.shape[-1:], self.weight, self.config.epsilon)


class LayerNorm(Norm):
    """A norm by mean and standard deviation, with a bias."""

    biased = True

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.config.epsilon)
