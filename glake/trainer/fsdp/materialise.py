"""A model's parameters, sorted into units and flats, and given their first values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from glake.errors import InvalidArgument
from glake.trainer.fsdp.collectives import Collectives
from glake.trainer.fsdp.flat import Flat, Origin
from glake.trainer.fsdp.offload import Host

ROOT = "root"


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks by name, each once; InvalidArgument for a model without `blocks`."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        raise InvalidArgument(
            f"{type(model).__name__} has no `blocks`: FSDP gathers a model block by block, and "
            "takes them from an nn.ModuleList of that name"
        )
    return {f"blocks.{number}": block for number, block in blocks.named_children()}


def origins_of(model: nn.Module) -> dict[str, list[Origin]]:
    """Each unit's parameters, in the order of its modules; one that two units share is the root's,
    whose parameters are there throughout."""
    blocks = blocks_of(model)
    found: dict[int, Origin] = {}
    homes: dict[int, set[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        home = ".".join(path.split(".")[:2])
        if home not in blocks:
            if home.startswith("blocks."):
                continue  # a block that stands in the list twice
            home = ROOT
        for attribute, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{path}.{attribute}" if path else attribute
            origin = found.setdefault(id(parameter), Origin(name, parameter, []))
            if not any(owner is module and known == attribute for owner, known in origin.owners):
                origin.owners.append((module, attribute))
            homes.setdefault(id(parameter), set()).add(home)
    units: dict[str, list[Origin]] = {ROOT: [], **{name: [] for name in blocks}}
    for key, origin in found.items():
        home = homes[key].pop() if len(homes[key]) == 1 else ROOT
        units[home].append(origin)
    return units


def flats_of(
    unit: str,
    origins: list[Origin],
    ranks: Collectives,
    compute: torch.dtype | None,
    host: Host | None,
) -> list[Flat]:
    """One flat for each dtype and trainability among a unit's parameters."""
    sorts: dict[tuple[torch.dtype, bool], list[Origin]] = {}
    for origin in origins:
        kind = (origin.parameter.dtype, origin.parameter.requires_grad)
        sorts.setdefault(kind, []).append(origin)
    return [
        Flat(
            f"{unit}.{str(dtype).removeprefix('torch.')}.{'trained' if trained else 'frozen'}",
            several,
            ranks,
            compute,
            host,
        )
        for (dtype, trained), several in sorts.items()
    ]


def resets(
    model: nn.Module, units: Mapping[str, Iterable[Origin]]
) -> dict[str, list[tuple[str, nn.Module]]]:
    """Of each unit, the modules that give first values to its parameters on the meta device, in
    the order in which they draw: whoever shards a model, the same seed gives the same values."""
    homes = {
        id(module): unit
        for unit, origins in units.items()
        for origin in origins
        for module, _ in origin.owners
        if origin.parameter.is_meta
    }
    modules = list(model.named_modules())
    return {unit: [each for each in modules if homes.get(id(each[1])) == unit] for unit in units}


def fill(model: nn.Module, units: dict[str, list[Flat]], device: torch.device) -> None:
    """Shares out every parameter's values; those on the meta device are made first.

    The whole of one unit is on the device at a time. Every rank draws all values, so that the same
    seed gives the same ones whatever the number of ranks.
    """
    origins = {
        unit: [each for flat in flats for each in flat.origins] for unit, flats in units.items()
    }
    drawing = resets(model, origins)
    buffers_to(model, device)
    for unit, flats in units.items():
        values = [flat.values() for flat in flats]
        for path, module in drawing[unit]:
            reset(path, module)
        for flat, value in zip(flats, values, strict=True):
            flat.share_out(value)


def buffers_to(model: nn.Module, device: torch.device) -> None:
    """Brings the buffers to the device; those on the meta device are made."""
    for path, module in model.named_modules():
        missing = False
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
                missing = True
            elif buffer is not None:
                module._buffers[name] = buffer.to(device)
        if missing and not any(True for _ in module._parameters.values()):
            reset(path, module)


def reset(path: str, module: Any) -> None:
    """Gives a module's parameters and buffers their first values."""
    fill_in = getattr(module, "reset_parameters", None)
    if fill_in is None:
        raise InvalidArgument(
            f"{path or 'the model'}: {type(module).__name__} is on the meta device and has no "
            "reset_parameters(), which gives its parameters and buffers their first values"
        )
    with torch.no_grad():
        fill_in()
