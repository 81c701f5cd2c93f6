"""Brings modules to the GPU for their forward pass, and moves them away again
(Offloader.alternate)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glake import arguments
from glake.errors import InvalidArgument
from glake.transfer.storages import storages_of, tensors_in

if TYPE_CHECKING:
    from glake.transfer.offload import Move


@dataclass(frozen=True)
class Moves:
    """What an offloader does for an Alternation."""

    fetch: Callable[[Any], Move]  # moves a module's tensors back to the GPU
    offload: Callable[[Any], Move]
    settle: Callable[[Move], None]  # waits for the move, if no stream waits for it


class Alternation:
    """Fetches the next module while one computes. A module that has computed leaves after its pass,
    or when the high watermark requires it."""

    def __init__(
        self,
        moves: Moves,
        modules: list[Any],
        frozen: bool,
        watermarks: tuple[int, int] | None,
    ) -> None:
        """Moves all modules away, and sets hooks on their forward passes.

        Args:
            moves: the functions that move modules.
            modules: in the order of their forward passes.
            frozen: the host's copies stay valid, so nothing is copied to the host.
            watermarks: (low, high), bytes of modules on the GPU; None: each module leaves after its
                pass.
        """
        self._do, self._modules = moves, modules
        # Each storage once, with the tensors of all modules that share it. These tensors move with
        # it.
        self._units = storages_of(modules)
        of = {id(one): unit for unit, each in enumerate(self._units) for one in each.tensors}
        self._own = [{of[id(one)] for one in tensors_in(each) if id(one) in of} for each in modules]
        self._low, self._high = watermarks or (0, 0)
        if watermarks is not None:
            self._require_room()
        self._units = []  # otherwise they would keep the GPU's memory
        moves.offload(modules).wait()
        self._units = storages_of(modules)  # in the same order, and on the host
        self._kept = [one.flat() for one in self._units] if frozen else None
        self._moves: dict[int, Move] = {}  # moves for which no forward pass has waited yet
        self._coming: deque[Move] = deque()
        self._leaving: deque[Move] = deque()
        self._here: list[int] = []  # modules on the GPU or on their way, in the order of their use
        self._thread, self._depth = 0, 0  # of the forward pass under way
        self._hooks = []
        for at, module in enumerate(modules):
            before = self._before(at)
            self._hooks.append(
                module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
            )
            self._hooks.append(module.register_forward_hook(self._after(at)))
            self._hooks.append(module.register_forward_hook(self._exit, always_call=True))

    def end(self) -> None:
        """Removes the hooks, and moves away the modules that are on the GPU. Raises the copies'
        errors."""
        for each in self._hooks:
            each.remove()
        for move in (*self._moves.values(), *self._coming, *self._leaving):
            move.wait()
        if self._kept is not None:
            self._drop(set(range(len(self._units))))
        self._do.offload(self._modules).wait()

    def _require_room(self) -> None:
        pairs = [self._own[at] | self._own[self._following(at)] for at in range(len(self._own))]
        least = max((self._bytes(pair) for pair in pairs), default=0)
        if self._high < least:
            raise InvalidArgument(
                f"watermarks: {self._high} bytes are too few; one module and the next are up to "
                f"{least} bytes, and are on the GPU together"
            )

    def _before(self, at: int) -> Callable[..., None]:
        def hook(module: Any, *given: Any) -> None:
            self._enter()
            _refuse_grad(module, given)
            self._fetch(at, {at})
            self._here.remove(at)
            self._here.append(at)
            if at in self._moves:
                self._do.settle(_behind(self._moves.pop(at), self._coming))
            self._fetch(self._following(at), {at, self._following(at)})

        return hook

    def _after(self, at: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            following = self._following(at)
            if not self._high:
                self._leave(at)
            elif self._beside(self._following(following)) > self._high:
                keep = {following} - {at}
                self._make_room(self._following(following), keep, self._low)

        return hook

    def _enter(self) -> None:
        if self._depth and self._thread != threading.get_ident():
            raise InvalidArgument(
                "alternate() is for one thread's forward passes at a time: another thread's is "
                "under way in these modules"
            )
        self._thread, self._depth = threading.get_ident(), self._depth + 1

    def _exit(self, *_: Any) -> None:
        if self._depth and self._thread == threading.get_ident():
            self._depth -= 1

    def _following(self, at: int) -> int:
        return (at + 1) % len(self._modules)

    def _bytes(self, units: set[int]) -> int:
        return sum(self._units[unit].bytes for unit in units)

    def _used(self) -> set[int]:
        return set().union(*(self._own[at] for at in self._here))

    def _beside(self, wanted: int) -> int:
        """The bytes on the GPU once module `wanted` is there too."""
        return self._bytes(self._used() | self._own[wanted])

    def _make_room(self, wanted: int, keep: set[int], limit: int) -> None:
        """Makes modules leave. The module that was used last leaves first: the next pass has the
        same order, so that module is needed last."""
        for used in reversed(self._here[:]):
            if self._beside(wanted) <= limit:
                return
            if used not in keep:
                self._leave(used)

    def _fetch(self, at: int, keep: set[int]) -> None:
        if at in self._here:
            return
        if self._high:
            self._make_room(at, keep, self._high)
        self._moves[at] = self._do.fetch(self._tensors(self._own[at]))
        self._here.insert(0, at)  # not used yet

    def _leave(self, at: int) -> None:
        self._here.remove(at)
        if at in self._moves:  # a pass that ended early has not used it
            self._moves.pop(at).wait()
        while self._high and self._coming:  # the last one may be this module's and hold memory
            self._coming.popleft().wait()
        units = self._own[at] - self._used()  # storages that other modules here share stay
        if self._kept is not None:
            self._drop(units)  # later work of the current stream may use their memory
            return
        self._do.settle(_behind(self._do.offload(self._tensors(units)), self._leaving))

    def _tensors(self, units: set[int]) -> list[Any]:
        return [tensor for unit in sorted(units) for tensor in self._units[unit].tensors]

    def _drop(self, units: set[int]) -> None:
        assert self._kept is not None
        for unit in units:
            self._units[unit].rebase(self._kept[unit])


def modules_of(given: Any) -> list[Any]:
    """The modules in their order. Raises InvalidArgument for values that are no modules."""
    order = list(given) if isinstance(given, Iterable) else []
    wrong = [at for at, each in enumerate(order) if not hasattr(each, "register_forward_pre_hook")]
    if isinstance(given, Iterable) and not wrong:
        return order
    found = f"a {type(given).__name__}"
    if hasattr(given, "values"):  # iterating over a dict would give its names
        found += ": pass its values()"
    elif wrong and not isinstance(given, str):
        found += f" whose number {wrong[0]} is a {type(order[wrong[0]]).__name__}"
    raise InvalidArgument(
        "alternate() takes modules in their order, such as a ModuleList or [first, second], "
        f"not {found}"
    )


def watermarks_of(given: Any) -> tuple[int, int] | None:
    """(low, high) in bytes. Raises InvalidArgument if these are not two sizes, or if low is above
    high. Raises WrongType if one is not a size."""
    if given is None:
        return None
    pair = tuple(given) if isinstance(given, list | tuple) else ()
    if len(pair) != 2:
        raise InvalidArgument(
            f"watermarks {given!r}: two sizes, low and high, such as ('2GiB', '4GiB')"
        )
    low, high = (
        arguments.size(f"watermarks {given!r}: {name}", each)
        for name, each in zip(("low", "high"), pair, strict=True)
    )
    if low > high:
        raise InvalidArgument(f"watermarks {given!r}: low is above high")
    return low, high


def _behind(move: Move, others: deque[Move]) -> Move:
    """Waits until few moves are under way. Each holds its memory until it is done."""
    others.append(move)
    if len(others) > 1:
        others.popleft().wait()
    return move


def _refuse_grad(module: Any, given: Any) -> None:
    """Raises InvalidArgument if a pass is recorded for a backward pass. A pass of frozen modules
    can be recorded too, for the gradient of their inputs."""
    import torch
    from torch.utils._pytree import tree_leaves

    recorded = (*module.parameters(), *tree_leaves(given))
    if torch.is_grad_enabled() and any(getattr(each, "requires_grad", False) for each in recorded):
        raise InvalidArgument(
            "alternate() is for forward passes: a backward pass would find the weights away; use "
            "torch.no_grad()"
        )
