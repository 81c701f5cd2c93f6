"""Modules that come to the GPU for their forward pass and leave it again (Offloader.alternate)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glake import arguments, config
from glake.errors import InvalidArgument
from glake.transfer.storages import storages_of

if TYPE_CHECKING:
    from glake.transfer.offload import Move


@dataclass(frozen=True)
class Moves:
    """What an offloader does for it."""

    fetch: Callable[[Any], Move]  # back to the GPU what is away of a module
    offload: Callable[[Any], Move]
    settle: Callable[[Move], None]  # waits for one that no stream waits for


class Alternation:
    """While one module computes the next one is fetched; what has computed leaves when it must."""

    def __init__(
        self,
        moves: Moves,
        modules: list[Any],
        frozen: bool,
        watermarks: tuple[int, int] | None,
    ) -> None:
        """Moves all modules away, and hooks their forward passes.

        Args:
            moves: how they come and go.
            modules: in the order of their forward passes.
            frozen: the host's copies stay as they are; nothing is copied back.
            watermarks: (low, high), bytes of modules on the GPU; None: each leaves after its pass.
        """
        self._do, self._modules = moves, modules
        self._sizes = [sum(one.bytes for one in storages_of(each)) for each in modules]
        self._low, self._high = watermarks or (0, 0)
        if watermarks is not None:
            self._require_room()
        self._moves: dict[int, Move] = {}  # that no forward pass has waited for
        self._coming: deque[Move] = deque()
        self._leaving: deque[Move] = deque()
        self._here: list[int] = []  # modules on the GPU or on their way, in the order of their use
        moves.offload(modules).wait()
        # The host's copies, which stay while modules are on the GPU.
        self._kept = (
            [[one.flat() for one in storages_of(each)] for each in modules] if frozen else None
        )
        self._hooks = []
        for at, module in enumerate(modules):
            self._hooks.append(module.register_forward_pre_hook(self._before(at)))
            self._hooks.append(module.register_forward_hook(self._after(at)))

    def end(self) -> None:
        """Moves away what is on the GPU. What copies raise."""
        for each in self._hooks:
            each.remove()
        for move in (*self._moves.values(), *self._coming, *self._leaving):
            move.wait()
        if self._kept is not None:
            for at in range(len(self._modules)):
                self._drop(at)
        self._do.offload(self._modules).wait()

    def _require_room(self) -> None:
        count = len(self._sizes)
        pairs = [self._sizes[at] + self._sizes[(at + 1) % count] for at in range(count)]
        least = max(pairs if count > 1 else self._sizes, default=0)
        if self._high < least:
            raise InvalidArgument(
                f"watermarks: {self._high} bytes are too few; one module and the next are up to "
                f"{least} bytes, and are on the GPU together"
            )

    def _before(self, at: int) -> Callable[..., None]:
        def hook(module: Any, *_: Any) -> None:
            _refuse_grad(module)
            self._fetch(at)
            self._here.remove(at)
            self._here.append(at)
            if at in self._moves:
                self._do.settle(_behind(self._moves.pop(at), self._coming))
            if len(self._modules) > 1:
                self._fetch(self._following(at))

        return hook

    def _after(self, at: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            following = self._following(at)
            wanted = self._following(following)
            more = 0 if wanted in self._here else self._sizes[wanted]
            if self._on_gpu() + more <= self._high:
                return
            # What was used last is wanted last: a pass comes in the same order again.
            for used in reversed(self._here[:]):
                if used == following and used != at:
                    continue
                self._leave(used)
                if self._high and self._on_gpu() + more <= self._low:
                    break
                if not self._high:
                    break  # without watermarks the others have left already

        return hook

    def _following(self, at: int) -> int:
        return (at + 1) % len(self._modules)

    def _on_gpu(self) -> int:
        return sum(self._sizes[at] for at in self._here)

    def _fetch(self, at: int) -> None:
        if at not in self._here:
            self._moves[at] = self._do.fetch(self._modules[at])
            self._here.insert(0, at)  # not used yet

    def _leave(self, at: int) -> None:
        self._here.remove(at)
        if self._kept is not None:
            self._drop(at)  # its memory serves what the current stream does next
            return
        self._do.settle(_behind(self._do.offload(self._modules[at]), self._leaving))

    def _drop(self, at: int) -> None:
        assert self._kept is not None
        for one, flat in zip(storages_of(self._modules[at]), self._kept[at], strict=True):
            one.rebase(flat)


def modules_of(given: Any) -> list[Any]:
    """The modules in their order. InvalidArgument for what are none."""
    order = list(given) if isinstance(given, Iterable) else [given]
    wrong = [each for each in order if not hasattr(each, "register_forward_pre_hook")]
    if wrong or not isinstance(given, Iterable):
        raise InvalidArgument(
            "alternate() takes modules in their order, such as a ModuleList or [first, second], "
            f"not a {type((wrong or order)[0]).__name__}"
        )
    return order


def watermarks_of(given: Any) -> tuple[int, int] | None:
    """(low, high) in bytes. InvalidArgument for what are no two sizes, or low above high."""
    if given is None:
        return None
    try:
        low, high = (
            config.parse_bytes(str(each if isinstance(each, str) else arguments.whole(each)))
            for each in given
        )
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"watermarks {given!r}: two sizes, low and high, such as ('2GiB', '4GiB')"
        ) from None
    if low > high:
        raise InvalidArgument(f"watermarks {given!r}: low is above high")
    return low, high


def _behind(move: Move, others: deque[Move]) -> Move:
    """The move, once the one before it is done: each holds its memory until it is."""
    others.append(move)
    if len(others) > 1:
        others.popleft().wait()
    return move


def _refuse_grad(module: Any) -> None:
    import torch

    if torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters()):
        raise InvalidArgument(
            "alternate() is for forward passes: a backward pass would find the weights away; use "
            "torch.no_grad()"
        )
