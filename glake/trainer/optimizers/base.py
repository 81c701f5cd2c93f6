"""What the optimizers' configs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glake.errors import InvalidOption
from glake.trainer.configurable import Configurable

Norm = Callable[[list[Tensor]], Tensor]


class Optimizer(Configurable):
    """Its config's build(named_parameters, norm=None) returns a torch.optim.Optimizer.

    Parameters may be pieces: rules go by name, never by shape, and a step on pieces equals that on
    the whole. `norm` is for what needs the norm of all gradients, those of other ranks included.
    """

    @dataclass(kw_only=True)
    class Config(Configurable.Config):
        lr: float = 3e-4
        weight_decay: float = 0.1
        undecayed: tuple[str, ...] = ("bias", "norm")  # no decay where a name holds one of these

        def build(self, named_parameters: Any, norm: Norm | None = None) -> torch.optim.Optimizer:
            raise NotImplementedError

        def groups(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Any]:
            """Parameters that learn, with weight decay and without; no empty group."""
            if self.lr < 0 or self.weight_decay < 0:
                raise InvalidOption(
                    f"lr is {self.lr}, weight_decay {self.weight_decay}: take 0 or more"
                )
            decayed: list[nn.Parameter] = []
            spared: list[nn.Parameter] = []
            for name, own in named_parameters:
                if own.requires_grad:
                    held = any(word in name for word in self.undecayed)
                    (spared if held else decayed).append(own)
            if not decayed and not spared:
                raise InvalidOption("no parameter learns: all are frozen")
            groups = ((decayed, self.weight_decay), (spared, 0.0))
            return [{"params": own, "weight_decay": decay} for own, decay in groups if own]


def local_norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all tensors as one vector, in fp32."""
    return torch.stack([tensor.float().square().sum() for tensor in tensors]).sum().sqrt()


def global_norm(group: Any = None) -> Norm:
    """local_norm() of the tensors of all ranks of a process group, which hold different pieces."""

    def norm(tensors: list[Tensor]) -> Tensor:
        square = local_norm(tensors).square()
        torch.distributed.all_reduce(square, group=group)
        return square.sqrt()

    return norm
