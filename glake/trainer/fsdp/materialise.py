"""Sorts a model's parameters into units and flats, and gives them their first values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from glake.errors import InvalidArgument
from glake.trainer.fsdp.collectives import Collectives
from glake.trainer.fsdp.flat import Flat, Slot
from glake.trainer.fsdp.offload import Host

ROOT = "root"


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks by name, each once. Raises InvalidArgument for a model without `blocks`."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        raise InvalidArgument(
            f"{type(model).__name__} has no `blocks`: FSDP gathers a model block by block, and "
            "takes them from an nn.ModuleList of that name"
        )
    return {f"blocks.{number}": block for number, block in blocks.named_children()}


def slots_of(model: nn.Module) -> dict[str, list[Slot]]:
    """Each unit's parameters, in the order of its modules. A parameter that two units share belongs
    to the root, because the root's parameters are gathered throughout the pass."""
    units: dict[str, list[Slot]] = {ROOT: []}
    homes: dict[nn.Module, str] = {}
    for name, block in blocks_of(model).items():
        units[name] = []
        for module in block.modules():
            homes[module] = ROOT if module in homes else name
    found: dict[int, tuple[Slot, set[str]]] = {}
    for path, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{path}.{attribute}" if path else attribute
                slot, known = found.setdefault(id(parameter), (Slot(name, parameter), set()))
                slot.owners.append((module, attribute))
                known.add(homes.get(module, ROOT))
    for slot, known in found.values():
        units[known.pop() if len(known) == 1 else ROOT].append(slot)
    return units


def flats_of(
    unit: str,
    slots: Iterable[Slot],
    ranks: Collectives,
    compute: torch.dtype | None,
    host: Host | None,
) -> list[Flat]:
    """A flat for each dtype and trainability among a unit's parameters."""
    sorts: dict[str, list[Slot]] = {}
    for slot in slots:
        kind = "trained" if slot.whole.requires_grad else "frozen"
        name = f"{unit}.{str(slot.whole.dtype).removeprefix('torch.')}.{kind}"
        sorts.setdefault(name, []).append(slot)
    return [Flat(name, several, ranks, compute, host) for name, several in sorts.items()]


def drawn(model: nn.Module, units: dict[str, list[Slot]], device: torch.device) -> Iterator[str]:
    """Gives parameters and buffers on the meta device their first values. Yields a unit's name when
    those of the unit have values, so that only one whole unit is on the device at a time.

    Every rank draws all values, always in the same order. So the same seed gives the same values,
    whatever the number of ranks and whichever FSDP shards the model.
    """
    homes = {
        module: unit for unit, slots in units.items() for slot in slots for module, _ in slot.owners
    }
    missing = {module for module in model.modules() if any(each.is_meta for each in _own(module))}
    for unit, slots in units.items():
        for slot in slots:
            if slot.whole.is_meta:
                made = torch.empty_like(slot.whole, device=device)
                slot.install(nn.Parameter(made, requires_grad=slot.whole.requires_grad))
        for path, module in model.named_modules():
            if homes.get(module, ROOT) == unit:
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        there = (
                            torch.empty_like(buffer, device=device) if buffer.is_meta else buffer
                        )
                        module._buffers[name] = there.to(device)
                if module in missing:
                    _reset(path, module)
        yield unit


def _own(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _reset(path: str, module: Any) -> None:
    """Gives a module's parameters and buffers their first values."""
    fill_in = getattr(module, "reset_parameters", None)
    if fill_in is None:
        raise InvalidArgument(
            f"{path or 'the model'}: {type(module).__name__} is on the meta device and has no "
            "reset_parameters(), which gives its parameters and buffers their first values"
        )
    with torch.no_grad():
        fill_in()
