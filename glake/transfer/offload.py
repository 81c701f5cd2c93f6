"""Tensors moved out of GPU memory into a bounded pool of pinned host memory, and back.

A tensor keeps its object: its `.data` is on the host while it is away. Copies are ordered by the
GPU's current stream, and go on while the caller does. Not seen on hardware yet: run on CPU tensors
in simulated GPU memory (GLAKE_DRIVER=sim with the emulation), where no stream orders what the CPU
does, so that a handle must be waited for before its tensors are used.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from glake import _C, config
from glake.errors import (
    CopyCancelled,
    CopyFailed,
    DriverError,
    GlakeError,
    InvalidArgument,
    OutOfMemory,
    TransferClosed,
)
from glake.transfer import keeper
from glake.transfer.engine import default_engine
from glake.transfer.handle import Transfer
from glake.transfer.host import pinned_block

GROUP = 256 << 20  # bytes copied as one: the GPU memory of one group is free while the next goes


class PoolFull(OutOfMemory):
    """The offloader's pool has no room; the text says what holds it. Nothing was moved."""


@dataclass
class _Away:
    """A block of the pool: where its bytes belong, and the copy that brought them."""

    device: Any
    bytes: int
    transfer: Transfer | None = None


class _Group:
    """Storages that move together, and how to take the move back."""

    def __init__(self, transfer: Transfer, undo: list[Callable[[], None]]) -> None:
        self.transfer, self._undo = transfer, undo
        self._lock = threading.Lock()
        self.error: GlakeError | None = None

    def over(self, wait: bool) -> bool:
        """Settles it once the copy is done: one that failed leaves its tensors where they were."""
        try:
            if wait:
                self.transfer.wait(0.05)
            elif not self.transfer.done():
                return False
            else:
                self.transfer.wait()
        except TimeoutError:
            return False
        except GlakeError as error:
            self._take_back(error)
        self._undo = []
        return True

    def _take_back(self, error: GlakeError) -> None:
        with self._lock:
            undo, self._undo = self._undo, []
            for step in undo:
                step()
            self.error = self.error or error


class Move:
    """An offload or a prefetch under way. It may be dropped; the copies go on."""

    def __init__(self, groups: list[_Group]) -> None:
        """Watches the groups."""
        self._groups = groups
        if groups:
            keeper.keeper.start()
        self.bytes = sum(group.transfer.bytes for group in groups)
        for group in groups:
            keeper.keeper.take(group)

    def done(self) -> bool:
        """Whether all copies are; wait() raises if one has failed."""
        return all(group.over(wait=False) for group in self._groups)

    def wait(self, timeout: float | None = None) -> Move:
        """Returns itself when all is copied; `timeout` in seconds.

        BusyTimeout; CopyFailed and the like: then the tensors of that copy are where they were.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for group in self._groups:
            # A failure is kept by over(), which takes the move back.
            with suppress(CopyFailed, CopyCancelled, TransferClosed, DriverError):
                group.transfer.wait(None if end is None else max(0.0, end - time.monotonic()))
            group.over(wait=False)
        for group in self._groups:
            if group.error is not None:
                raise group.error
        return self

    def progress(self) -> tuple[int, int]:
        """(bytes that have arrived, bytes of all)."""
        return sum(group.transfer.progress()[0] for group in self._groups), self.bytes


class Offloader:
    """A pool of at most `limit` bytes ("8GiB") of pinned host memory for tensors that are away.

    Tensors are found in modules (parameters and buffers), mappings and iterables. All that share a
    storage move together if all are given; one that is not given keeps the old memory.
    """

    def __init__(self, limit: str | int) -> None:
        """Pins nothing yet. InvalidArgument for a limit that is no size."""
        try:
            self.limit = config.parse_bytes(str(limit))
        except ValueError as error:
            raise InvalidArgument(f"limit {limit!r}: {error}; a size such as '8GiB'") from None
        self._lock = threading.RLock()
        self._away: dict[int, _Away] = {}  # by address of the block
        self._coming: list[_Group] = []  # whose blocks return to the pool when they are done

    @property
    def used(self) -> int:
        """Bytes of the pool in use: of tensors that are away, and of those on their way back."""
        return sum(away.bytes for away in list(self._away.values()))

    def offload(self, things: Any) -> Move:
        """Starts moving tensors to the pool; those that are there, or on the CPU, stay.

        The move is ordered after the work on the current stream. The host's copy is ready when the
        handle is done; the GPU's memory is freed by then, group by group.

        PoolFull if they do not fit: nothing is moved. InvalidArgument, and what copies raise.
        """
        engine = default_engine()
        with self._lock:
            storages = [one for one in _storages(things) if self._on_gpu(one)]
            self._make_room(sum(one.bytes for one in storages))
            return Move([self._move(engine, group, self._to_host) for group in _groups(storages)])

    def prefetch(self, things: Any) -> Move:
        """Starts moving tensors back to the GPU they came from; those that are not away stay.

        They may be used at once by work on the current stream of their GPU, which waits for them.
        OutOfMemory of the GPU's allocator, and what copies raise: those not moved stay away.
        """
        engine = default_engine()
        with self._lock:
            storages = [one for one in _storages(things) if one.address in self._away]
            move = Move([self._move(engine, group, self._to_gpu) for group in _groups(storages)])
            self._coming = [one for one in self._coming if not one.over(wait=False)]
            self._coming += move._groups
            return move

    def offload_optimizer(self, optimizer: Any) -> Callable[[], None]:
        """Keeps a torch optimizer's state away except while it steps; returns what ends that.

        State that exists moves now, and the rest after the step that makes it.
        """

        def state() -> list[Any]:
            return [value for each in optimizer.state.values() for value in _tensors(each)]

        def before(*_: Any) -> None:
            self._settled(self.prefetch(state()))

        def after(*_: Any) -> None:
            self._settled(self.offload(state()))

        after()
        hooks = (
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
        )

        def end() -> None:
            for hook in hooks:
                hook.remove()
            self.prefetch(state()).wait()

        return end

    @contextmanager
    def alternate(self, modules: Iterable[Any]) -> Iterator[None]:
        """Double buffering: while one module computes its forward pass the next one is fetched, and
        the last one leaves, so that about two of them are on the GPU at a time. They start and
        end away. InvalidArgument, from the forward pass, if it is recorded for a backward pass.
        """
        order = list(modules)
        moves: dict[int, Move] = {}
        self.offload(order).wait()

        def fetch(at: int) -> None:
            if at not in moves:
                moves[at] = self.prefetch(order[at])

        def before(at: int) -> Callable[..., None]:
            def hook(module: Any, *_: Any) -> None:
                _refuse_grad(module)
                fetch(at)
                self._settled(moves.pop(at))
                if len(order) > 1:
                    fetch((at + 1) % len(order))

            return hook

        def after(at: int) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                self._settled(self.offload(order[at]))

            return hook

        hooks = []
        for at, module in enumerate(order):
            hooks.append(module.register_forward_pre_hook(before(at)))
            hooks.append(module.register_forward_hook(after(at)))
        try:
            yield
        finally:
            for each in hooks:
                each.remove()
            for move in moves.values():
                move.wait()
            self.offload(order).wait()

    def _settled(self, move: Move) -> None:
        # The GPU's stream waits for the copies by itself. In the emulation the CPU computes.
        if not all(group.transfer.ordered for group in move._groups):
            move.wait()

    def _on_gpu(self, one: _Storage) -> bool:
        if one.bytes == 0 or one.address in self._away:
            return False
        return bool(one.device.type == "cuda" or _C.place_of(one.address)[0] >= 0)

    def _make_room(self, size: int) -> None:
        if size + self.used > self.limit:
            Move(self._coming).wait()
            self._coming = []
        if size + self.used > self.limit:
            raise PoolFull(
                f"{size} bytes do not fit the offloader's pool: {self.used} of its {self.limit} "
                f"bytes hold {len(self._away)} storages that are away; nothing was moved. Give it "
                "a larger limit, prefetch or drop some of them, or offload less"
            )

    def _move(self, engine: Any, group: list[_Storage], place: Callable[..., Any]) -> _Group:
        made = [(one, place(one)) for one in group]
        transfer = engine.copy_batch([(new, one.flat()) for one, new in made])
        undo = []
        for one, new in made:
            if new.untyped_storage().data_ptr() in self._away:
                self._away[new.untyped_storage().data_ptr()].transfer = transfer
            undo.append(one.rebase(new))
        return _Group(transfer, undo)

    def _to_host(self, one: _Storage) -> Any:
        import torch

        away = self._away  # not the offloader: its tensors may outlive it
        memory, address = pinned_block(one.bytes, lambda block: away.pop(block, None))
        away[address] = _Away(one.device, one.bytes)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def _to_gpu(self, one: _Storage) -> Any:
        import torch

        away = self._away[one.address]
        if away.transfer is not None and not away.transfer.done():
            if away.device.type == "cuda":
                away.transfer.stream_wait(torch.cuda.current_stream(away.device))
            else:
                away.transfer.wait()
        return torch.empty(one.bytes, dtype=torch.uint8, device=away.device)


class _Storage:
    """A storage and the tensors given that are views of it."""

    def __init__(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        self.address, self.bytes, self.device = storage.data_ptr(), storage.nbytes(), tensor.device
        self._storage = storage
        self.tensors: list[Any] = []

    def flat(self) -> Any:
        """All its bytes, as a tensor."""
        import torch

        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(self._storage)

    def rebase(self, flat: Any) -> Callable[[], None]:
        """Has the tensors be views of `flat`; returns what takes that back."""
        import torch

        storage = flat.untyped_storage()
        before = [(weakref.ref(tensor), tensor.data) for tensor in self.tensors]
        for tensor in self.tensors:
            view = torch.empty(0, dtype=tensor.dtype, device=flat.device)
            tensor.data = view.set_(
                storage, tensor.storage_offset(), tensor.size(), tensor.stride()
            )

        def undo() -> None:
            for reference, data in before:
                tensor = reference()
                if tensor is not None:
                    tensor.data = data

        return undo


def _refuse_grad(module: Any) -> None:
    import torch

    if torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters()):
        raise InvalidArgument(
            "alternate() is for forward passes: a backward pass would find the weights away; use "
            "torch.no_grad()"
        )


def _tensors(things: Any) -> Iterator[Any]:
    import torch

    if isinstance(things, torch.Tensor):
        yield things
    elif isinstance(things, torch.nn.Module):
        yield from things.parameters()
        yield from things.buffers()
    elif isinstance(things, Mapping):
        yield from _tensors(things.values())
    elif isinstance(things, Iterable) and not isinstance(things, (str, bytes)):
        for each in things:
            if not isinstance(each, (str, bytes, int, float, bool, type(None))):
                yield from _tensors(each)
    elif not isinstance(things, (int, float, bool, type(None))):
        raise InvalidArgument(f"{type(things).__name__} holds no tensors to move")


def _storages(things: Any) -> list[_Storage]:
    import torch

    found: dict[int, _Storage] = {}
    seen: set[int] = set()
    for tensor in _tensors(things):
        if id(tensor) in seen or tensor.layout is not torch.strided:
            continue
        seen.add(id(tensor))
        key = tensor.untyped_storage()._cdata
        found.setdefault(key, _Storage(tensor)).tensors.append(tensor)
    return list(found.values())


def _groups(storages: list[_Storage]) -> Iterator[list[_Storage]]:
    group: list[_Storage] = []
    size = 0
    for one in storages:
        if group and (size + one.bytes > GROUP or one.device != group[0].device):
            yield group
            group, size = [], 0
        group.append(one)
        size += one.bytes
    if group:
        yield group
