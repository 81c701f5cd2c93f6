"""glake's own FSDP, with the interface of Sharded."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from glake.trainer.fsdp import materialise
from glake.trainer.fsdp.flat import Flat
from glake.trainer.fsdp.offload import Activations, Host
from glake.trainer.fsdp.schedule import Schedule
from glake.trainer.fsdp.sharding import Sharded, Sharding, dtype_of
from glake.trainer.fsdp.state import State
from glake.trainer.fsdp.unit import Unit


class Ours(Sharded, fsdp="ours"):
    """A model whose blocks are gathered when they are needed."""

    def __init__(self, config: Sharding.Config, model: nn.Module, group: Any, device: Any) -> None:
        super().__init__(config, model, group, device)
        compute = dtype_of(config.compute_dtype)
        self._schedule = Schedule(dtype_of(config.reduce_dtype), config.prefetch)
        self._host = Host(self.device)
        keep = self._host if config.offload == "parameters" else None
        activations = Activations(self._host, self._ranks)
        slots = materialise.slots_of(model)
        units = {
            name: materialise.flats_of(name, slots[name], self._ranks, compute, keep)
            for name in materialise.drawn(model, slots, self.device)
        }
        blocks = materialise.blocks_of(model)
        for name, flats in units.items():
            Unit(
                name,
                blocks.get(name, model),
                flats,
                self._schedule,
                reshard=config.reshard_after_forward and name in blocks,
                recompute=config.recompute and name in blocks,
                inputs=compute,
                saved=(
                    functools.partial(activations.saved, [*units["root"], *flats])
                    if config.activation_offload and name in blocks
                    else nullcontext
                ),
            )
        self._flats: list[Flat] = [flat for flats in units.values() for flat in flats]
        self.state = State(self._flats, self._ranks)

    def attach(self, optimizer: Any) -> None:
        if self.config.offload == "optimizer":
            total = sum(flat.shard.nbytes for flat in self._flats if flat.trainable)
            self._host.keep_optimizer(optimizer, total)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parts, by name. They are 1-D."""
        for flat in self._flats:
            for slot in flat.slots:
                if slot.piece.numel():
                    yield slot.name, slot.piece

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        self._schedule.synchronise, before = False, self._schedule.synchronise
        try:
            yield
        finally:
            self._schedule.synchronise = before

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for flat in self._flats:
            whole = flat.whole_values()
            if self._ranks.rank == 0:
                for slot in flat.slots:
                    yield slot.name, whole[slot.start : slot.end].view(slot.shape).cpu()

    @torch.no_grad()
    def put(self, name: str, value: torch.Tensor) -> None:
        for flat in self._flats:
            for slot in flat.slots:
                if slot.name == name:
                    first = flat.first + slot.offset - slot.start
                    part = value.reshape(-1)[first : first + slot.piece.numel()]
                    slot.piece.copy_(part)
