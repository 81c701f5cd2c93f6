"""A sharded model of three parameters whose values encode the step and their place."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from glake.trainer.fsdp import Sharding


class NoOptimizer:
    """An optimizer without state."""

    param_groups: list[Any] = []

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}


class StandIn:
    """What a Checkpoint asks of a model under glake.trainer.fsdp: its `state`."""

    def __init__(self, size: int) -> None:
        module = nn.Module()
        module.blocks = nn.ModuleList()
        module.flat = nn.Parameter(torch.zeros(size))
        module.moment = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        module.count = nn.Parameter(torch.zeros(()))
        self.places = torch.arange(size)
        self.sharded = Sharding.Config().build(module, device="cpu")
        self.state = self.sharded.state

    def _values(self, at: int) -> dict[str, torch.Tensor]:
        moment = self.places.double() / 7 + at
        return {
            "flat": self.places.float() + at * 1000,
            "moment": moment,
            "count": torch.tensor(at),
        }

    def step(self, at: int) -> None:
        for name, value in self._values(at).items():
            self.sharded.put(name, value)

    def is_of(self, at: int) -> bool:
        found = dict(self.sharded.full_parameters())
        return all(
            torch.equal(found[name], value.to(found[name]))
            for name, value in self._values(at).items()
        )
