"""A unit: a block of the model with its flats. The root is the unit of all that is in no block.

The unit replaces its module's `forward`, so that nothing else of the model changes. It waits for
its parameters before the forward and the backward pass, and frees them after each pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from glake.trainer.fsdp.flat import Flat
from glake.trainer.fsdp.schedule import Schedule


class _AfterBackward(torch.autograd.Function):
    """The identity on a unit's inputs. Its backward runs when the unit's own backward is over."""

    @staticmethod
    def forward(ctx: Any, unit: Unit, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.unit.after_backward()
        return (None, *gradients)


class Unit:
    """A module whose parameters are gathered and freed together."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        flats: list[Flat],
        schedule: Schedule,
        *,
        reshard: bool,
        recompute: bool = False,
        inputs: torch.dtype | None = None,
        saved: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """`reshard`: free the parameters between forward and backward. `inputs` is the dtype to
        which floating-point arguments are cast. `saved` is a context for what autograd saves."""
        self.name, self.module, self.flats = name, module, flats
        self.reached = False  # whether the backward pass under way has come to this unit
        self.pending = 0  # forward passes whose backward pass has not come yet
        self._schedule, self._reshard, self._saved = schedule, reshard, saved
        self._inputs = inputs
        self._compute: Callable[..., Any] = module.forward
        if recompute:
            self._compute = functools.partial(checkpoint, self._compute, use_reentrant=False)
        module.forward = self.forward
        schedule.units.append(self)

    # The module's forward pass

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replaces the module's own forward()."""
        self._schedule.enter(self)
        try:
            args, kwargs = self._arrive(args, kwargs)
            with self._saved():
                result = self._compute(*args, **kwargs)
        except BaseException:
            self._schedule.failed()
            raise
        made = [leaf for leaf in pytree.tree_leaves(result) if _has_gradient(leaf)]
        keep = torch.is_grad_enabled() and bool(made)
        if keep:
            self.pending += 1
            for tensor in made:
                tensor.register_hook(lambda _: self._schedule.before_backward(self))
        self._schedule.leave(self, keep)
        if self._reshard or not keep:
            self.release()
        return result

    def _arrive(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, after a cast. When their gradients arrive, the gradients of this unit are
        complete."""
        leaves, layout = pytree.tree_flatten((args, kwargs))
        if self._inputs is not None:
            leaves = [
                leaf.to(self._inputs)
                if torch.is_tensor(leaf) and leaf.is_floating_point()
                else leaf
                for leaf in leaves
            ]
        if torch.is_grad_enabled():
            at = [number for number, leaf in enumerate(leaves) if _has_gradient(leaf)]
            mark: Any = _AfterBackward.apply
            passed = mark(self, *(leaves[number] for number in at)) if at else ()
            for number, leaf in zip(at, passed, strict=True):
                leaves[number] = leaf
        return pytree.tree_unflatten(leaves, layout)

    # Its backward pass

    def after_backward(self) -> None:
        """Called when the gradients of one forward pass are complete."""
        self.pending = max(0, self.pending - 1)
        if self._reshard or not self.pending:
            self.release()
        if not self.pending:
            self._schedule.reduce(self)

    def has_gradients(self, partial: bool) -> bool:
        """Whether there are gradients that are not reduced yet. `partial`: gradients of earlier
        passes count too."""
        left = (flat for flat in self.flats if flat.trainable)
        return any(
            (partial and flat.partial is not None)
            or any(slot.whole.grad is not None for slot in flat.slots)
            for flat in left
        )

    # Its parameters

    def gather(self) -> None:
        """Starts to gather the parameters."""
        for flat in self.flats:
            flat.gather()

    def wait(self) -> None:
        """Waits until the parameters are whole."""
        self.gather()
        for flat in self.flats:
            flat.wait()

    def release(self) -> None:
        """Frees the parameters, but not the share."""
        for flat in self.flats:
            flat.release()

    def reset(self, backward: bool) -> None:
        """Restores the state after construction, whichever pass failed. The shares stay as they
        are. After a failed forward pass the gradients of earlier passes stay too."""
        self.reached = False
        self.pending = 0
        self.release()
        for flat in self.flats:
            flat.forget(backward)


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
