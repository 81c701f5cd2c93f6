"""A rank's own tensors by name: parameters, and what the optimizer keeps for each of them.

They are the tensors in use, and no rank is asked: what a rank puts into its own memory at a step,
and takes back from there when it is started again.
"""

from __future__ import annotations

from typing import Any

import torch

from glake.trainer.checkpoint.host import local


def pieces(sharded: Any, optimizer: Any) -> dict[str, torch.Tensor]:
    """Name, or name|key of the optimizer's state -> tensor."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in sharded.named_parameters():
        found[name] = local(parameter)
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                found[f"{name}|{key}"] = local(value)
    return found


def fits(saved: dict[str, torch.Tensor], sharded: Any) -> bool:
    """Whether these are pieces of this model, shared out in this way."""
    own = {name: local(each) for name, each in sharded.named_parameters()}
    theirs = {name: each for name, each in saved.items() if "|" not in name}
    return own.keys() == theirs.keys() and all(
        own[name].shape == theirs[name].shape and own[name].dtype == theirs[name].dtype
        for name in own
    )


def put_back(saved: dict[str, torch.Tensor], sharded: Any, optimizer: Any) -> None:
    """The values of pieces() in place; the optimizer's state is made where there is none."""
    parameters = dict(sharded.named_parameters())
    optimizer.state.clear()
    with torch.no_grad():
        for name, value in saved.items():
            name, bar, key = name.partition("|")
            parameter = parameters[name]
            if not bar:
                local(parameter).copy_(value)
            else:
                optimizer.state[parameter][key] = _like(value, key, parameter, optimizer)


def _like(value: torch.Tensor, key: str, parameter: Any, optimizer: Any) -> torch.Tensor:
    """A copy of the state's tensor, of the kind and where the optimizer would have made it."""
    if value.dim() == 0:  # torch's step counts are on the device for these alone
        groups = (g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
        group: Any = next(groups, {})
        on_device = group.get("fused") or group.get("capturable")
        return value.to(parameter.device, copy=True) if on_device else value.clone()
    return value.to(parameter.device, copy=True)
