"""The common part of the optimizers' configs, and torch's AdamW."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from glake.errors import InvalidOption
from glake.trainer.configurable import Configurable, Positive, SharePart, Within

Norm = Callable[[list[Tensor]], Tensor]
Rate = Annotated[float, Within(0, 1e18)]  # so that no product of two overflows a float
Betas = tuple[SharePart, SharePart]


class Optimizer(Configurable, abstract=True):
    """The base of optimizers. Its config's build(named_parameters, norm=None) returns a
    torch.optim.Optimizer.

    Parameters may be pieces of whole ones. So rules depend on names, never on shapes, and a step on
    pieces equals a step on the whole. `norm` computes the norm of tensors over all ranks, for
    optimizers that need it.
    """

    class Config(Configurable.Config):
        def build(self, named_parameters: Any, norm: Norm | None = None) -> torch.optim.Optimizer:
            raise NotImplementedError


class Decayed(Optimizer, abstract=True):
    """An optimizer with its own rate and decoupled weight decay."""

    class Config(Optimizer.Config):
        lr: Rate = 3e-4
        weight_decay: Rate = 0.1
        undecayed: tuple[str, ...] = ("bias", "norm")  # no decay if a name contains one of these

        def groups(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Any]:
            """The trainable parameters in two groups: with weight decay and without. Empty groups
            are left out."""
            decayed: list[nn.Parameter] = []
            spared: list[nn.Parameter] = []
            for name, own in named_parameters:
                if own.requires_grad:
                    held = any(word in name for word in self.undecayed)
                    (spared if held else decayed).append(own)
            if not decayed and not spared:
                raise InvalidOption("there is no trainable parameter: all are frozen")
            groups = ((decayed, self.weight_decay), (spared, 0.0))
            return [{"params": own, "weight_decay": decay} for own, decay in groups if own]


class AdamW(Decayed):
    class Config(Decayed.Config):
        betas: Betas = (0.9, 0.95)
        epsilon: Positive = 1e-8
        fused: bool = False  # torch's one kernel for all

        def build(self, named_parameters: Any, norm: Norm | None = None) -> torch.optim.Optimizer:
            groups, fused = self.groups(named_parameters), self.fused or None
            return torch.optim.AdamW(groups, self.lr, self.betas, self.epsilon, fused=fused)


def local_norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all tensors as one vector, in fp32."""
    return torch.stack([tensor.float().square().sum() for tensor in tensors]).sum().sqrt()
