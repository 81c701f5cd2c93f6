"""Starts gathers and reductions: a gather before its unit computes, and a reduction after it.

All ranks must start their collectives in the same order. So this order depends only on the order in
which units run, which is the same on all ranks. It does not depend on values or on time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from glake.errors import InvalidArgument

if TYPE_CHECKING:
    from glake.trainer.fsdp.unit import Unit


class Schedule:
    """The order of a model's units, and what is under way."""

    def __init__(self, reduce_dtype: torch.dtype | None, ahead: int) -> None:
        """`ahead` is how many units are gathered before they are needed."""
        self.units: list[Unit] = []  # the root first
        self.synchronise = True  # reduce gradients after a backward pass
        self._reduce_dtype, self._ahead = reduce_dtype, ahead
        self._expected: list[Unit] = []  # the order of the last forward pass
        self._order: list[Unit] = []  # the order of the forward pass under way
        self._kept: list[Unit] = []  # units whose backward pass is still to come, in order
        self._reducing: Unit | None = None  # its gradients are being summed
        self._depth = 0  # how many forward passes of units are under way, one inside the other
        self._task: int | None = None  # the backward pass at whose end _end() will be called

    # Forward

    def enter(self, unit: Unit) -> None:
        """Called when a unit's forward pass begins."""
        if torch._C._current_graph_task_id() != -1:
            raise InvalidArgument(
                f"{unit.name} runs forward within a backward pass: a checkpoint around it would "
                "gather it out of turn; take sharding.recompute"
            )
        if self._depth == 0:
            if self._task is not None:  # that backward pass did not reach its end
                self.reset()
            self._expected = self._order if len(self._order) >= len(self.units) else self.units
            self._order = []
        self._depth += 1
        self._order.append(unit)
        unit.wait()
        at = len(self._order)
        if self._expected[at - 1 : at] == [unit]:
            self._prefetch(self._expected[at : at + self._ahead])

    def leave(self, unit: Unit, keep: bool) -> None:
        """Called when a unit's forward pass is over. `keep`: a backward pass may follow."""
        if keep:
            self._kept.append(unit)
        self._depth -= 1
        if self._depth == 0 and not keep:
            for other in self.units:
                if other not in self._kept:
                    other.release()

    def failed(self) -> None:
        """Called when a unit's forward pass has raised an error."""
        self._depth -= 1
        if self._depth == 0:
            self.reset()

    def _prefetch(self, units: list[Unit]) -> None:
        for unit in units:
            unit.gather()

    # Backward

    def before_backward(self, unit: Unit) -> None:
        """Called when the gradients of a unit's output have arrived."""
        task = torch._C._current_graph_task_id()
        if self._task != task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        unit.reached = True
        unit.wait()
        for at in range(len(self._kept) - 1, -1, -1):
            if self._kept[at] is unit:
                del self._kept[at:]
                self._prefetch(self._kept[-self._ahead :][::-1] if self._ahead else [])
                return

    def reduce(self, unit: Unit) -> None:
        """Starts to reduce a unit's gradients, or keeps them while gradients accumulate."""
        unit.reached = False
        self._deliver()
        for flat in unit.flats:
            if not flat.trainable:
                continue
            dtype = self._reduce_dtype or flat.dtype
            if self.synchronise:
                flat.reduce(dtype)
                self._reducing = unit
            else:
                flat.partial = flat.collect(dtype)

    def _deliver(self) -> None:
        unit, self._reducing = self._reducing, None
        if unit is not None:
            for flat in unit.flats:
                flat.deliver()

    def _end(self) -> None:
        """Called at the end of the backward pass. Reduces the gradients of the root, and of units
        whose inputs need no gradient."""
        for unit in reversed(self.units):
            unit.release()  # first, because there may be no room for parameters and sums
            if unit.reached or unit.has_gradients(partial=self.synchronise):
                self.reduce(unit)
            unit.pending = 0
        self._deliver()
        for unit in self.units:
            for flat in unit.flats:
                flat.settle()  # waits for gradients on their way to host memory
        self._task = None
        self._kept.clear()

    # Both

    def reset(self) -> None:
        """Ends what a failed pass has left under way, and forgets its gradients. If a backward pass
        failed, all gradients are forgotten."""
        backward = self._task is not None
        self._reducing = None
        self._kept.clear()
        self._order = []
        self._depth, self._task = 0, None
        for unit in self.units:
            unit.reset(backward)
