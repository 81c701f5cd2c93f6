"""Finds the phase and the module of the job that run now: the first frames of a tag.

After a backward pass or an optimizer's step, an operator outside all modules may belong to an
update (clipping), to another forward pass (its inputs), or to neither (`step`). Only what comes
next tells which.
"""

from __future__ import annotations

import bisect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


class Where:
    """The phase and module path of what runs now, forward and backward. Operators of phase ``step``
    may turn out to belong to an update or a forward pass. ``settle`` is then called with that
    phase."""

    def __init__(self, settle: Callable[[str], None] = lambda phase: None) -> None:
        self.phase = "setup"
        self._settle = settle
        self._optimizers: list[Any] = []
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._modules: list[tuple[Any, str]] = []
        # For each thread: the sequence numbers of autograd from which on nodes belong to a module.
        self._marks: dict[int, tuple[list[int], list[str]]] = {}
        self._tasks: dict[int, int] = {}
        self._between = False  # after a backward or an update, before a module
        self._last = ""

    def frames(self) -> tuple[str, str]:
        """The phase and the module path of the operator that runs now."""
        task = torch._C._current_graph_task_id()
        if self._optimizers:
            return "optimizer", type(self._optimizers[-1]).__name__
        if task != -1:
            self._settle("forward")
            self._between = True
            if self._modules:
                return "recompute", self._modules[-1][1]
            return "backward", self._backward_path(task)
        if self._modules:
            return self.phase, self._modules[-1][1]
        return "step" if self.phase == "forward" and self._between else self.phase, ""

    def begin_step(self) -> None:
        """Begins a step. Its phase is forward until something else is seen."""
        self.phase, self._between = "forward", False
        self._optimizers.clear()
        self._modules.clear()
        self._marks.clear()
        self._tasks.clear()

    def _backward_path(self, task: int) -> str:
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else -1
        thread = self._tasks.get(task)
        if thread is None:
            # A reentrant checkpoint runs a graph in the thread that recorded it.
            here = threading.get_ident()
            nested = bool(self._tasks) and here in self._marks
            thread = here if nested else next(iter(self._marks), 0)
            self._tasks[task] = thread
        numbers, paths = self._marks.get(thread, ([], []))
        if 0 <= number < 1 << 62 and numbers:
            at = bisect.bisect_right(numbers, number) - 1
            self._last = paths[at] if at >= 0 else ""
        return self._last

    def _mark(self) -> None:
        number = torch._C._autograd._get_sequence_nr()
        numbers, paths = self._marks.setdefault(threading.get_ident(), ([], []))
        path = self._modules[-1][1] if self._modules else ""
        if numbers and numbers[-1] >= number:
            at = bisect.bisect_left(numbers, number)
            del numbers[at:], paths[at:]
        numbers.append(number)
        paths.append(path)

    def _path(self, module: Any) -> str:
        known = self._names.get(module)
        if known is None:
            above = self._modules[-1][1] if self._modules else ""
            root = f"{above}.{type(module).__name__}" if above else type(module).__name__
            known = self.name(module, root, root + "." if above else "")
        return known

    def name(self, module: Any, root: str, prefix: str = "") -> str:
        """Names a root module and all modules below it, as named_modules() does."""
        for path, each in module.named_modules():
            if path and each not in self._names:
                self._names[each] = prefix + path
        self._names[module] = root
        return root

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sets hooks on every module and optimizer of the process."""

        def enter(module: Any, _: Any) -> None:
            if torch._C._current_graph_task_id() == -1 and not self._optimizers:
                self._settle("forward")
                self._between = False
            self._modules.append((module, self._path(module)))
            self._mark()

        def leave(module: Any, *_: Any) -> None:
            while self._modules and self._modules.pop()[0] is not module:
                pass
            self._mark()

        def begin(optimizer: Any, *_: Any) -> None:
            self._settle("optimizer")
            self._optimizers.append(optimizer)

        def end(optimizer: Any, *_: Any) -> None:
            while self._optimizers and self._optimizers.pop() is not optimizer:
                pass
            self._between = True

        handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
            register_optimizer_step_pre_hook(begin),
            register_optimizer_step_post_hook(end),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
