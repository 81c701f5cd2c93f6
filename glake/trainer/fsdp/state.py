"""A sharded model and its optimizer as named 1-D tensors, for torch.distributed.checkpoint (DCP).

    parameters.FLAT            the parameters of a flat, end to end
    optimizer.FLAT.KEY         what the optimizer keeps for each element of it (`exp_avg`)
    optimizer.scalars.KEY what it keeps for each parameter (`step`), in order; NaN: none

A flat's length does not depend on the number of ranks, so DCP loads it at another number of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard

from glake.errors import CheckpointMismatch
from glake.trainer.fsdp.collectives import Collectives, everyones
from glake.trainer.fsdp.flat import Flat

_SCALARS = "scalars"


@dataclass
class Part:
    """This rank's part of a tensor of the state. It consists of pieces of the tensors in use."""

    dtype: torch.dtype
    size: int  # elements
    pieces: list[tuple[int, torch.Tensor]]  # (first element, values) of each, in order
    fill: float = 0.0  # the value of elements between the pieces

    def put_into(self, to: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Fills the gaps between the pieces. Returns (destination, source) of the copies that
        remain."""
        end, copies = 0, []
        for first, piece in self.pieces:
            to[end:first] = self.fill
            end = first + piece.numel()
            copies.append((to[first:end], piece))
        to[end:] = self.fill
        return copies


class State:
    """The tensors of the model's flats, and of the optimizer that works on their pieces."""

    def __init__(self, flats: list[Flat], ranks: Collectives) -> None:
        self._flats = {flat.name: flat for flat in flats}
        self._ranks = ranks
        self._slots = [slot for flat in flats if flat.trainable for slot in flat.slots]

    def parts(self, optimizer: Any) -> dict[str, Part]:
        """This rank's part of all tensors. It involves no other rank and copies nothing."""
        found = {
            f"parameters.{name}": Part(flat.dtype, flat.valid, [(0, flat.shard[: flat.valid])])
            for name, flat in self._flats.items()
        }
        numbers = {slot: number for number, slot in enumerate(self._slots)}
        for name, flat in self._flats.items():
            for slot in flat.slots:
                state = {} if optimizer is None else optimizer.state.get(slot.piece, {})
                for key, value in state.items():
                    if value is None or not slot.piece.numel():
                        continue
                    path, first = f"optimizer.{name}.{key}", slot.offset
                    part = Part(value.dtype, flat.valid, [])
                    if not value.dim():  # one number for the parameter
                        path, first = f"optimizer.{_SCALARS}.{key}", numbers[slot]
                        part = Part(value.dtype, len(self._slots), [], fill=math.nan)
                    found.setdefault(path, part).pieces.append((first, value.detach().reshape(-1)))
        if self._ranks.device.type == "cuda":
            kept = [found[path] for path in found if _flat_of(path) != _SCALARS]
            if any(each.device.type == "cpu" for part in kept for _, each in part.pieces):
                torch.cuda.synchronize(self._ranks.device)  # the copy to the host may be under way
        return found

    def complete(self, own: dict[str, torch.Tensor], group: Any) -> dict[str, Any]:
        """The tensors that DCP writes, from those that parts() describes. All ranks call it.

        A rank may hold no piece of a tensor that other ranks have. It gets zeros for it. Scalars
        are the same on all ranks.
        """
        told: dict[str, Any] = dict(own)
        told |= {path: each.dtype for path, each in own.items() if _flat_of(path) != _SCALARS}
        merged = dict(own)
        for theirs in everyones(told, group):
            for path, each in theirs.items():
                if isinstance(each, torch.Tensor):
                    merged[path] = torch.fmax(merged.get(path, each), each)
                elif path not in own:
                    merged[path] = torch.zeros(self._flats[_flat_of(path)].valid, dtype=each)
        return {path: self._spread(path, merged[path]) for path in sorted(merged)}

    def tensors(self, optimizer: Any) -> dict[str, Any]:
        """The state for DCP, in host memory. All ranks call it."""
        own = {}
        for path, part in self.parts(optimizer).items():
            own[path] = torch.empty(part.size, dtype=part.dtype)
            for to, piece in part.put_into(own[path]):
                to.copy_(piece)
        return self.complete(own, self._ranks.group)

    def template(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors into which DCP loads. `saved` is the state_dict_metadata of a checkpoint.

        Raises CheckpointMismatch if the checkpoint is of another model.
        """
        self._require({path: math.prod(each.size) for path, each in saved.items()}, "length")
        found = {}
        for path, each in saved.items():
            flat = self._flats.get(_flat_of(path))
            size = math.prod(each.size) if flat is None else flat.valid
            found[path] = self._spread(path, torch.zeros(size, dtype=each.properties.dtype))
        return found

    @torch.no_grad()
    def load(self, state: Mapping[str, Any], optimizer: Any) -> None:
        """Loads this rank's tensors: those that DCP has filled in template(), or a copy of parts().

        Raises CheckpointMismatch if they are of another model.
        """
        own = {path: local(each) for path, each in state.items()}
        self._require({path: each.numel() for path, each in own.items()}, "valid")
        for name, flat in self._flats.items():
            flat.shard[: flat.valid].copy_(own[f"parameters.{name}"])
        if optimizer is None:
            return
        optimizer.state.clear()
        rows = [own[path] for path in own if _flat_of(path) == _SCALARS]
        # A parameter that has never had a gradient has no state, even if others of its flat have.
        never = torch.stack(rows).isnan().all(0).tolist() if rows else []
        stateless = {slot for slot, none in zip(self._slots, never, strict=False) if none}
        on_device = _counted_on_device(optimizer)
        for path, values in own.items():
            name, key = _flat_of(path), path.rpartition(".")[2]
            if path.startswith("parameters."):
                continue
            scalar = name == _SCALARS
            for number, slot in enumerate(self._slots if scalar else self._flats[name].slots):
                if not slot.piece.numel() or slot in stateless:
                    continue
                count = slot.piece.numel()
                value = values[number] if scalar else values[slot.offset : slot.offset + count]
                device = "cpu" if scalar and slot.piece not in on_device else slot.piece.device
                optimizer.state[slot.piece][key] = value.to(device, copy=True)

    def _spread(self, path: str, share: torch.Tensor) -> Any:
        """A share as a part of the whole tensor. Scalars, and tensors of a single process, are
        whole already."""
        flat = self._flats.get(_flat_of(path))
        if flat is None or self._ranks.group is None:
            return share
        return DTensor.from_local(
            share,
            self._ranks.mesh(share.device.type),
            [Shard(0)],
            run_check=False,
            shape=torch.Size([flat.length]),
            stride=(1,),
        )

    def _require(self, found: Mapping[str, int], size: str) -> None:
        """Raises CheckpointMismatch if these are not the sizes of the model's parameters."""
        wanted = {f"parameters.{name}": getattr(flat, size) for name, flat in self._flats.items()}
        given = {path: count for path, count in found.items() if path.startswith("parameters.")}
        for path in sorted({*wanted, *given}):
            if given.get(path) != wanted.get(path):
                raise CheckpointMismatch(
                    f"{path} has {given.get(path, 'no')} elements in the checkpoint and "
                    f"{wanted.get(path, 'no')} in the model: load it into one of the same config, "
                    "which is in its config.toml, or take another checkpoint.folder"
                )


def local(tensor: Any) -> torch.Tensor:
    """This rank's part of a DTensor. Any other tensor is returned as it is."""
    own: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return own


def _flat_of(path: str) -> str:
    """The flat to which a tensor of the state belongs, or "scalars"."""
    kind, _, name = path.partition(".")
    return name.rpartition(".")[0] if kind == "optimizer" else name


def _counted_on_device(optimizer: Any) -> set[torch.Tensor]:
    """The parameters whose steps torch counts on the device and not on the host."""
    groups = [g for g in optimizer.param_groups if g.get("fused") or g.get("capturable")]
    return {each for group in groups for each in group["params"]}
