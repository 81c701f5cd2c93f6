"""The purpose (kind) of tensors made in set-up. It is the last frame of their tags. Reports find
roles by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from glake import arguments
from glake.errors import PlanError, WrongType
from glake.trace.roles import KINDS

if TYPE_CHECKING:
    import torch


def kind(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """Tells `glake plan` the purpose of a tensor that was made in set-up, if no module owns it.

    Outside a plan nothing happens.

    Args:
        tensor: a tensor of the job.
        what: "parameter" (a flat buffer or partition of weights), "buffer", "master" (weights that
            only the optimizer has), "gradient" or "communication".

    Returns:
        The tensor.

    Raises:
        PlanError: `what` is another word.
        WrongType: `tensor` is no tensor.
    """
    if not isinstance(what, str) or what not in KINDS:
        raise PlanError(f"kind {what!r}: must be one of {', '.join(KINDS)}")
    marked: Any = tensor
    loaded: Any = sys.modules.get("torch")
    if loaded is None or not isinstance(marked, loaded.Tensor):
        raise WrongType(f"a tensor of the job, not {arguments.type_name(tensor)}")
    marked._glake_kind = what
    return tensor


def named(modules: list[Any]) -> Iterator[tuple[str, Any, str]]:
    """(name, tensor, kind) of live tensors. The most certain kinds come last: first weights that an
    optimizer updates and no module of ``modules`` (roots) owns, then parameters and buffers, then
    those given to :func:`kind`."""
    import gc

    import torch

    alive = gc.get_objects()
    for optimizer in (each for each in alive if issubclass(type(each), torch.optim.Optimizer)):
        for number, group in enumerate(optimizer.param_groups):
            for tensor in group["params"]:
                yield f"{type(optimizer).__name__}.param_groups.{number}", tensor, "master"
    for module in modules:
        for name, tensor in module.named_parameters():
            yield name, tensor, "parameter"
        for name, tensor in module.named_buffers():
            yield name, tensor, "buffer"
    for tensor in (each for each in alive if issubclass(type(each), torch.Tensor)):
        told = getattr(tensor, "_glake_kind", None)
        if told is not None:
            yield "", tensor, told
