"""A sharded model without a model: one flat tensor in even parts, and an optimizer's state."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from glake.errors import InvalidArgument


class NoOptimizer:
    """Keeps nothing."""

    param_groups: list[Any] = []

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}


class StandIn:
    """What a Checkpoint asks of glake.trainer.fsdp's Sharding."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        per = -(-size // dist.get_world_size())
        self.first = min(size, per * dist.get_rank())
        mine = min(size, self.first + per) - self.first
        self.flat, self.moment = torch.zeros(mine), torch.zeros(mine, dtype=torch.float64)
        self.count = torch.zeros(())

    def _sharded(self, part: torch.Tensor) -> DTensor:
        return DTensor.from_local(
            part, self.mesh, [Shard(0)], run_check=False, shape=(self.size,), stride=(1,)
        )

    def state(self, optimizer: Any = None) -> dict[str, Any]:
        return {
            "flat": self._sharded(self.flat),
            "moment": self._sharded(self.moment),
            "count": self.count,
        }

    def template(self, saved: Any, optimizer: Any = None) -> dict[str, Any]:
        there = tuple(saved["flat"].size)
        if there != (self.size,):
            raise InvalidArgument(f"'flat' has {there[0]} elements there and {self.size} here")
        return self.state()

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        return [("flat", self.flat), ("moment", self.moment), ("count", self.count)]

    def load(self, state: dict[str, Any], optimizer: Any = None) -> None:
        self.flat.copy_(state["flat"].to_local())
        self.moment.copy_(state["moment"].to_local())
        self.count.copy_(state["count"])

    def step(self, at: int) -> None:
        """The values of a state tell its step and their place."""
        places = torch.arange(self.first, self.first + len(self.flat))
        self.flat.copy_(places + at * 1000)
        self.moment.copy_(places.double() / 7 + at)
        self.count.fill_(at)

    def is_of(self, at: int) -> bool:
        before = [self.flat.clone(), self.moment.clone(), self.count.clone()]
        self.step(at)
        return all(map(torch.equal, before, [self.flat, self.moment, self.count]))
