"""A sharded model and its optimizer as named 1-D tensors, for torch.distributed.checkpoint (DCP).

    parameters.FLAT            the parameters of a flat, end to end
    optimizer.FLAT.KEY         what the optimizer keeps for each element of it (`exp_avg`)
    optimizer.scalars.KEY      what it keeps for each parameter (`step`), in order; NaN: nothing

A flat's length does not depend on the number of ranks, so DCP loads it at another number of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from glake.errors import InvalidArgument
from glake.trainer.fsdp.collectives import Collectives
from glake.trainer.fsdp.flat import Flat, Slot

_SCALARS = "scalars"


class State:
    """The tensors of some flats, and of an optimizer that works on their pieces."""

    def __init__(self, flats: list[Flat], ranks: Collectives) -> None:
        self._flats = {flat.name: flat for flat in flats}
        self._ranks = ranks
        trained = [(flat, slot) for flat in flats if flat.trainable for slot in flat.slots]
        self._slots = [slot for _, slot in trained]

    def tensors(self, optimizer: Any) -> dict[str, Any]:
        """Parameters are those in use, not copies; the optimizer's state is a copy."""
        found = {f"parameters.{name}": self._spread(f, f.shard) for name, f in self._flats.items()}
        if optimizer is None:
            return found
        elements, scalars = self._agreed(optimizer)
        for (name, key), dtype in elements.items():
            flat = self._flats[name]
            share = torch.zeros(flat.chunk, dtype=dtype, device=flat.shard.device)
            for slot in flat.slots:
                value = optimizer.state.get(slot.piece, {}).get(key)
                if value is not None and slot.piece.numel():
                    share[slot.offset : slot.offset + slot.piece.numel()] = value.reshape(-1)
            found[f"optimizer.{name}.{key}"] = self._spread(flat, share)
        for key, values in scalars.items():
            row = [values.get(slot.name, math.nan) for slot in self._slots]
            found[f"optimizer.{_SCALARS}.{key}"] = torch.tensor(row, dtype=torch.float64)
        return found

    def template(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors for DCP to load into; `saved`: the state_dict_metadata of a checkpoint.

        InvalidArgument where the checkpoint is of another model.
        """
        found: dict[str, Any] = {}
        for path, (flat, key) in self._places(saved).items():
            if flat is None:
                found[path] = torch.zeros(len(self._slots), dtype=saved[path].properties.dtype)
            elif not key:
                found[path] = self._spread(flat, flat.shard)
            else:
                dtype, device = saved[path].properties.dtype, flat.shard.device
                share = torch.zeros(flat.chunk, dtype=dtype, device=device)
                found[path] = self._spread(flat, share)
        return found

    @torch.no_grad()
    def load(self, state: Mapping[str, Any], optimizer: Any) -> None:
        """Takes over tensors that template() or tensors() made and DCP has filled."""
        places = self._places(state)
        if optimizer is not None:
            optimizer.state.clear()
        for path, (flat, key) in places.items():
            value = state[path]
            value = value.to_local() if hasattr(value, "to_local") else value
            if flat is not None and not key:
                flat.shard[: flat.valid].copy_(value[: flat.valid])
            elif flat is None and optimizer is not None:
                self._put_scalars(optimizer, key, value.tolist())
            elif flat is not None and optimizer is not None:
                for slot in flat.slots:
                    if slot.piece.numel() and slot.piece.requires_grad:
                        part = value[slot.offset : slot.offset + slot.piece.numel()]
                        optimizer.state[slot.piece][key] = part.clone()
        if optimizer is not None:
            # A parameter that has never had a gradient has no state, also beside ones that have.
            rows = [state[path] for path, (flat, _) in places.items() if flat is None]
            absent = torch.stack(rows).isnan().all(0).tolist() if rows else []
            for slot, never in zip(self._slots, absent, strict=False):
                if never:
                    optimizer.state.pop(slot.piece, None)

    def _put_scalars(self, optimizer: Any, key: str, row: list[float]) -> None:
        on_device = {
            id(each)
            for group in optimizer.param_groups
            if group.get("fused") or group.get("capturable")
            for each in group["params"]
        }
        for slot, value in zip(self._slots, row, strict=True):
            if not slot.piece.numel() or math.isnan(value):
                continue
            device = slot.piece.device if id(slot.piece) in on_device else "cpu"
            optimizer.state[slot.piece][key] = torch.tensor(value, device=device).float()

    def _agreed(self, optimizer: Any) -> tuple[dict[Any, torch.dtype], dict[str, Any]]:
        """What the optimizer keeps, on any rank: a rank may hold no piece of a flat."""
        elements: dict[tuple[str, str], torch.dtype] = {}
        scalars: dict[str, dict[str, float]] = {}
        for flat in self._flats.values():
            for slot in flat.slots:
                for key, value in optimizer.state.get(slot.piece, {}).items():
                    if value is None:
                        continue
                    if _is_for_each_element(slot, key, value):
                        elements[flat.name, key] = value.dtype
                    elif slot.piece.numel():
                        scalars.setdefault(key, {})[slot.name] = float(value)
        if self._ranks.ranks == 1:
            return elements, scalars
        every: list[Any] = [None] * self._ranks.ranks
        dist.all_gather_object(every, (elements, scalars), group=self._ranks.group)
        for theirs, values in every:
            elements.update(theirs)
            for key, row in values.items():
                scalars.setdefault(key, {}).update(row)
        return dict(sorted(elements.items())), dict(sorted(scalars.items()))

    def _spread(self, flat: Flat, share: torch.Tensor) -> Any:
        """A share as a part of the whole; without a process group it is the whole."""
        share = share[: flat.valid]
        if self._ranks.group is None:
            return share
        from torch.distributed.tensor import DTensor, Shard

        return DTensor.from_local(
            share,
            self._ranks.mesh(share.device.type),
            [Shard(0)],
            run_check=False,
            shape=torch.Size([flat.length]),
            stride=(1,),
        )

    def _places(self, saved: Mapping[str, Any]) -> dict[str, tuple[Flat | None, str]]:
        """Path -> (flat, key of the optimizer's state or "") of each tensor; no flat: scalars.

        `saved`: tensors, or what DCP says of them. InvalidArgument where it does not fit.
        """
        missing = [name for name in self._flats if f"parameters.{name}" not in saved]
        if missing:
            raise InvalidArgument(f"the checkpoint lacks the flats {', '.join(missing)}")
        found: dict[str, tuple[Flat | None, str]] = {}
        for path, described in saved.items():
            kind, _, name = path.partition(".")
            name, _, key = name.rpartition(".") if kind == "optimizer" else (name, "", "")
            if kind not in ("parameters", "optimizer"):
                continue
            flat = self._flats.get(name)
            if flat is None and not (key and name == _SCALARS):
                raise InvalidArgument(
                    f"the checkpoint has {path!r}, the model has no such flat; it has "
                    f"{', '.join(self._flats)}: load it into a model of the same config"
                )
            expected = len(self._slots) if flat is None else flat.length
            count = math.prod(described.size() if callable(described.size) else described.size)
            if count != expected:
                raise InvalidArgument(
                    f"{path!r} has {count} elements in the checkpoint and {expected} in the model: "
                    "load it into a model of the same config"
                )
            found[path] = (flat, key)
        return found


def _is_for_each_element(slot: Slot, key: str, value: Any) -> bool:
    """Of an entry of an optimizer's state: else it is one number for the parameter."""
    if isinstance(value, torch.Tensor):
        if value.dim() and value.numel() == slot.piece.numel():
            return True
        if value.dim() == 0:
            return False
        shown = f"a tensor of {list(value.shape)}"
    else:
        shown = f"a {type(value).__name__}"
    raise InvalidArgument(
        f"the optimizer keeps {shown} as {key!r} for {slot.name!r}, whose part here has "
        f"{slot.piece.numel()} elements: only a tensor of one number, or of one for each element, "
        "can be resharded"
    )
