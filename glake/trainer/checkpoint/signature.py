"""A state's signature: the options of its experiment and the model's parameters, by name.

Tensors of the same sizes may belong to another model (such as one with another number of heads) or
another optimizer. So each state has its signature beside it. It can be loaded only into an
experiment with the same model and kind of optimizer. Other differences are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glake.errors import CheckpointMismatch

Signature = Mapping[str, str]
_FREE = (
    "std",
    "loss_rows",
    "dropout",
    "balance",
    "rotary.longest",
)  # a model's options that may change from run to run
_SILENT = ("checkpoint.", "log.", "weights", "export", "timeout_s")
_SHOWN = 3  # differences that a message lists


def signature_of(model: Any, config: Any) -> dict[str, str]:
    """The signature of an experiment's config and model. The model is not sharded yet."""
    found = {path: str(value) for path, value in config.flat().items()}
    for name, own in model.named_parameters():
        frozen = "" if own.requires_grad else ", frozen"
        found[f"parameter {name}"] = f"{own.dtype} {list(own.shape)}{frozen}"
    return found


def compare(saved: Signature, own: Signature, state: str) -> str:
    """Describes harmless differences in words. Raises CheckpointMismatch where the state belongs to
    another model or optimizer."""
    paths = [*own, *(path for path in saved if path not in own)]
    differ = [path for path in paths if saved.get(path) != own.get(path)]
    wrong = [path for path in differ if _must_agree(path)]
    if wrong:
        shown = [f"{path} is {saved.get(path)} there and {own.get(path)} here" for path in wrong]
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise CheckpointMismatch(
            f"{state} is of another model or optimizer: {'; '.join(shown[:_SHOWN])}{more}. Set "
            "these as they were, or take another checkpoint.folder"
        )
    told = [path for path in differ if not path.startswith(_SILENT)]
    return "; ".join(f"{path} was {saved.get(path)}, and is {own.get(path)}" for path in told)


def _must_agree(path: str) -> bool:
    if path.startswith("optimizer."):
        return path.endswith("class")
    return path.startswith(("model.", "parameter ")) and not path.endswith(_FREE)
