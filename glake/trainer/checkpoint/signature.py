"""What a state is of: the model, its parameters and the optimizer's kind, by name.

Tensors of the same sizes may belong to another function (another number of heads) or another
optimizer. A state has its signature beside it, and goes into an experiment of the same one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glake.errors import CheckpointMismatch

Signature = Mapping[str, str]
_FREE = ("std", "loss_rows", "dropout", "balance")  # of a model; may change from run to run
_SHOWN = 3  # differences


def signature_of(model: Any, config: Any, optimizer: Any) -> dict[str, str]:
    """Of a model that is not sharded yet, its config, and the optimizer's."""
    options = {f"model.{path}": value for path, value in config.flat().items()}
    found = {path: str(value) for path, value in options.items() if not path.endswith(_FREE)}
    for path, value in optimizer.flat().items():
        if path.endswith("class"):
            found[f"optimizer.{path}"] = str(value)
    for name, own in model.named_parameters():
        frozen = "" if own.requires_grad else ", frozen"
        found[f"parameter {name}"] = f"{own.dtype} {list(own.shape)}{frozen}"
    return found


def compare(saved: Signature, own: Signature, state: str) -> None:
    """CheckpointMismatch, with what differs, where the state is of another experiment."""
    paths = [*own, *(path for path in saved if path not in own)]
    differ = [path for path in paths if saved.get(path) != own.get(path)]
    if not differ:
        return
    shown = [f"{path} is {saved.get(path)} there and {own.get(path)} here" for path in differ]
    more = f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
    raise CheckpointMismatch(
        f"{state} is of another model or optimizer: {'; '.join(shown[:_SHOWN])}{more}. Set "
        "these as they were, take another checkpoint.folder, or begin anew with "
        "checkpoint.resume=false"
    )
