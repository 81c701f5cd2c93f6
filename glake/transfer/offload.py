"""Moves tensors out of GPU memory into a bounded pool of pinned host memory, and back.

A tensor keeps its object. While it is away, its `.data` is on the host. Copies are ordered by the
GPU's current stream, and run beside the caller. With CPU tensors in simulated GPU memory
(GLAKE_DRIVER=sim with the emulation) no stream orders the CPU's work, so a handle must be waited
for before its tensors are used.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glake import _C, arguments, config
from glake.errors import (
    CopyCancelled,
    CopyFailed,
    DriverError,
    GlakeError,
    InvalidArgument,
    PoolFull,
    TransferClosed,
)
from glake.transfer import completion_watcher, handle, timeouts
from glake.transfer.alternation import Alternation, Moves, modules_of, watermarks_of
from glake.transfer.engine import default_engine
from glake.transfer.handle import Transfer
from glake.transfer.host import pinned_block
from glake.transfer.storages import (
    Storage,
    groups,
    require_own_parameters,
    storages_of,
    tensors_in,
)

if TYPE_CHECKING:
    import torch

# Seconds to wait for a block whose copy is done. Code that holds its old memory keeps it longer.
_RETURN_S = 0.2


@dataclass
class _Away:
    """A block of the pool: the device from which its bytes came, and the copy that brought them."""

    device: Any
    bytes: int
    transfer: Transfer | None = None


_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # offloaders keep their state away
_pooled: set[int] = set()  # addresses of the blocks of every offloader's pool


class _Group:
    """Storages that move together, and a way to undo the move."""

    def __init__(
        self, transfer: Transfer, undo: list[Callable[[], None]], blocks: frozenset[int]
    ) -> None:
        self.transfer, self._undo = transfer, undo
        self.blocks = blocks  # the pool's blocks that its tensors leave
        self._lock = threading.RLock()
        self.error: GlakeError | None = None

    def over(self, wait: bool) -> bool:
        """Settles the group once the copy is done. If the copy failed, its tensors stay where they
        were."""
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
        with self._lock:  # another thread may be freeing the old memory: waits until it is free
            self._undo = []
        return True

    def _take_back(self, error: GlakeError) -> None:
        with self._lock:
            undo, self._undo = self._undo, []
            for step in undo:
                step()
            self.error = self.error or error


class Move:
    """An offload or a prefetch that is under way. The object may be dropped. The copies go on.

    Attributes:
        bytes: of all its copies.
    """

    def __init__(self, groups: list[_Group]) -> None:
        """Begins to watch the groups."""
        self.groups = groups
        self._family = handle.family()
        if groups:
            completion_watcher.watcher.start()
        self.bytes = sum(group.transfer.bytes for group in groups)
        for group in groups:
            completion_watcher.watcher.take(group)

    def done(self) -> bool:
        """Whether all copies are done. wait() raises if one has failed."""
        handle.require_own(self._family)
        return all(group.over(wait=False) for group in self.groups)

    def wait(self, timeout: float | None = None) -> Move:
        """Returns itself when all copies are done.

        Args:
            timeout: seconds; None: no limit.

        Raises:
            BusyTimeout: the move is not done by then. It goes on.
            GlakeError: a copy failed (CopyFailed and the like). Its tensors are where they were.
        """
        handle.require_own(self._family)
        timeout = timeouts.seconds(timeout)
        end = None if timeout is None else time.monotonic() + timeout
        for group in self.groups:
            # over() keeps the error, and undoes the move.
            with suppress(CopyFailed, CopyCancelled, TransferClosed, DriverError):
                group.transfer.wait(None if end is None else max(0.0, end - time.monotonic()))
            group.over(wait=False)
        for group in self.groups:
            if group.error is not None:
                raise group.error
        return self

    def progress(self) -> tuple[int, int]:
        """(bytes that have arrived, bytes of all)."""
        handle.require_own(self._family)
        return sum(group.transfer.progress()[0] for group in self.groups), self.bytes


class Offloader:
    """A pool of pinned host memory for tensors that are away from their GPU.

    Tensors are found in modules (parameters and buffers), mappings and iterables. Tensors that
    share a storage move together if all of them are given. A tensor that is not given keeps the old
    memory.

    Args:
        limit: bytes of the pool, or text such as "8GiB".

    Raises:
        InvalidArgument: no such size.
        WrongType: neither a number nor text.
    """

    def __init__(self, limit: str | int) -> None:
        """Pins nothing yet. InvalidArgument if the limit is not a size."""
        size = limit if isinstance(limit, str) else arguments.whole(limit)
        if size is None:
            raise InvalidArgument(f"limit {limit!r}: whole bytes, or a size such as '8GiB'")
        try:
            self.limit = config.parse_bytes(str(size))
        except ValueError as error:
            raise InvalidArgument(f"limit {limit!r}: {error}; a size such as '8GiB'") from None
        self._lock = threading.RLock()
        self._away: dict[int, _Away] = {}  # by address of the block
        self._coming: list[_Group] = []  # on the way back: their blocks return when they are done

    @property
    def used(self) -> int:
        """The bytes of the pool that tensors use, which are away or on their way back."""
        return sum(away.bytes for away in list(self._away.values()))

    def offload(self, things: object) -> Move:
        """Starts moving tensors to the pool. Tensors that are in the pool already, or on the CPU,
        stay.

        The move is ordered after the work on the current stream. When the handle is done, the
        host's copy is ready and the GPU's memory is free. The memory is freed group by group.

        Args:
            things: tensors, modules, or mappings and iterables of them.

        Raises:
            PoolFull: they do not fit. Nothing is moved.
            InvalidArgument: another offloader has them away, there are no tensors (a number, None),
                a parameter is a DTensor or of a module under DistributedDataParallel or FSDP, or a
                tensor is quantized. Nothing is moved.
            RegionPaused: tensors of a paused region. Nothing is moved.
            GlakeError: as of Engine.copy.
        """
        storages = storages_of(things)
        engine = default_engine()
        with self._lock:
            self._refuse_others(storages)
            # The same name is used again, so that the longer list is freed. Otherwise an error's
            # traceback, which holds this frame's variables, would keep the storages that are away.
            storages = [one for one in storages if self._on_gpu(one)]
            require_own_parameters(storages)
            # A storage that is on its way back without the order of a stream must have arrived
            # before it is offloaded again.
            Move([one for one in self._coming if not one.transfer.ordered]).wait()
            self._make_room(sum(one.bytes for one in storages))
            return self._moved(engine, storages, self._to_host)

    def prefetch(self, things: object) -> Move:
        """Starts moving tensors back to the GPU that they came from. Tensors on a GPU stay.

        Work on the current stream of their GPU may use them at once, because that stream waits for
        the copies.

        Args:
            things: tensors, modules, or mappings and iterables of them.

        Raises:
            InvalidArgument: there are tensors, but none is away in this pool or on a GPU.
            RegionPaused: tensors of a paused region.
            OutOfMemory: the GPU has no room. Tensors that were not moved stay away.
            GlakeError: as of Engine.copy. Tensors that were not moved stay away.
        """
        storages = storages_of(things)
        default_engine()
        with self._lock:
            known = [
                one
                for one in storages
                if one.bytes == 0 or one.address in self._away or self._on_gpu(one)
            ]
            if storages and not known:
                raise InvalidArgument(
                    f"prefetch: none of {len(storages)} storages is away in this offloader's pool, "
                    "and none is on a GPU; offload() of the same offloader takes them away first"
                )
            return self._fetch(storages)

    def _refuse_others(self, storages: list[Storage]) -> None:
        others = [
            one for one in storages if one.address in _pooled and one.address not in self._away
        ]
        if others:
            raise InvalidArgument(
                f"offload: {len(others)} of {len(storages)} storages "
                f"({sum(one.bytes for one in others)} bytes) are away in the pool of another "
                "offloader; nothing was moved. prefetch() of that one brings them back first"
            )

    def _fetch(self, storages: list[Storage]) -> Move:
        engine = default_engine()
        with self._lock:
            storages = [one for one in storages if one.address in self._away]
            move = self._moved(engine, storages, self._to_gpu)
            self._coming = [one for one in self._coming if not one.over(wait=False)]
            self._coming += move.groups
            return move

    def offload_optimizer(self, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        """Keeps a torch optimizer's state away except while it steps.

        State that exists moves now. State that a later step makes moves after that step.

        Args:
            optimizer: one of torch's.

        Returns:
            A function that ends this, and brings the state back.

        Raises:
            InvalidArgument: no torch optimizer, or one whose state is kept away already.
            GlakeError: as of offload().
        """
        if not hasattr(optimizer, "state") or not hasattr(optimizer, "register_step_pre_hook"):
            raise InvalidArgument(
                f"offload_optimizer takes a torch optimizer, not {arguments.type_name(optimizer)}"
            )
        if optimizer in _optimizers:
            raise InvalidArgument(
                f"the state of this {type(optimizer).__name__} is kept away already: call what the "
                "first offload_optimizer() returned, which ends that"
            )

        def state() -> list[Any]:
            return [value for each in optimizer.state.values() for value in tensors_in([each])]

        def before(*_: Any) -> None:
            self._settled(self._fetch(storages_of(state())))

        def after(*_: Any) -> None:
            self._settled(self.offload(state()))

        after()
        hooks: tuple[Any, ...] = (
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(after),
        )

        _optimizers.add(optimizer)

        def end() -> None:
            nonlocal hooks
            if hooks:  # in a second call, another offloader may keep the optimizer
                _optimizers.discard(optimizer)
            for hook in hooks:
                hook.remove()
            hooks = ()
            self._fetch(storages_of(state())).wait()

        return end

    @contextmanager
    def alternate(
        self,
        modules: Iterable[torch.nn.Module],
        frozen: bool = False,
        watermarks: tuple[str | int, str | int] | None = None,
    ) -> Iterator[None]:
        """Double buffering: while one module computes its forward pass, the next one is fetched and
        the last one leaves. The modules are away at the start and at the end.

        Args:
            modules: in the order of their forward passes.
            frozen: nothing is written to the modules meanwhile. If something is, it is lost. Frozen
                modules are not copied to the host when they leave, so about two are on the GPU at a
                time. Otherwise about four are.
            watermarks: (low, high) bytes of modules on the GPU, such as ("2GiB", "4GiB"). Modules
                stay there until fetching one would pass high. Then those used last leave, until low
                or less is there. A module that is copied back holds its memory until the copy is
                done. None: each leaves after its forward pass.

        Raises:
            InvalidArgument: there are no modules, or the high watermark is below two modules in a
                row. The forward pass raises it if it is recorded for a backward pass.
            WrongType: watermarks that are no sizes.
            GlakeError: as of offload() and prefetch().
        """
        order = modules_of(modules)
        arguments.flag("frozen", frozen)
        moves = Moves(lambda module: self._fetch(storages_of(module)), self.offload, self._settled)
        alternation = Alternation(moves, order, frozen, watermarks_of(watermarks))
        try:
            yield
        finally:
            alternation.end()

    def _settled(self, move: Move) -> None:
        # On a GPU the stream waits for the copies. In the emulation the CPU computes, and must
        # wait.
        if not all(group.transfer.ordered for group in move.groups):
            move.wait()

    def _on_gpu(self, one: Storage) -> bool:
        if one.bytes == 0 or one.address in self._away:
            return False
        gpu = _C.place_of(one.address)[0]  # raises RegionPaused for memory of a paused region
        return bool(one.device.type == "cuda" or gpu >= 0)

    def _make_room(self, size: int) -> None:
        if size + self.used > self.limit:
            Move(self._coming).wait()
            self._await_blocks(frozenset().union(*(one.blocks for one in self._coming)))
            self._coming = []
        if size + self.used > self.limit:
            raise PoolFull(
                f"{size} bytes do not fit the offloader's pool: {self.used} of its {self.limit} "
                f"bytes hold {len(self._away)} storages that are away; nothing was moved. Give it "
                "a larger limit, prefetch or drop some of them, or offload less"
            )

    def _await_blocks(self, blocks: frozenset[int]) -> None:
        """Waits until blocks are free. Another thread that waited for the same copy may hold its
        memory a moment longer."""
        end = time.monotonic() + _RETURN_S
        while not blocks.isdisjoint(self._away) and time.monotonic() < end:
            time.sleep(0.001)

    def _moved(self, engine: Any, storages: list[Storage], place: Callable[..., Any]) -> Move:
        started: list[_Group] = []
        try:
            for group in groups(storages):
                started.append(self._move(engine, group, place))
        finally:  # groups that have begun are watched, even if a later one failed
            move = Move(started)
        return move

    def _move(self, engine: Any, group: list[Storage], place: Callable[..., Any]) -> _Group:
        made = [(one, place(one)) for one in group]
        transfer = engine.copy_batch([(new, one.flat()) for one, new in made])
        undo = []
        for one, new in made:
            if new.untyped_storage().data_ptr() in self._away:
                self._away[new.untyped_storage().data_ptr()].transfer = transfer
            undo.append(one.rebase(new))
        blocks = frozenset(one.address for one, _ in made if one.address in self._away)
        return _Group(transfer, undo, blocks)

    def _to_host(self, one: Storage) -> Any:
        import torch

        away = self._away  # `freed` must not keep the offloader, which tensors may outlive

        def freed(block: int) -> None:
            away.pop(block, None)
            _pooled.discard(block)

        memory, address = pinned_block(one.bytes, freed)
        _pooled.add(address)
        away[address] = _Away(one.device, one.bytes)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def _to_gpu(self, one: Storage) -> Any:
        import torch

        away = self._away[one.address]
        if away.transfer is not None and not away.transfer.done():
            if away.device.type == "cuda":
                away.transfer.stream_wait(torch.cuda.current_stream(away.device))
            else:
                away.transfer.wait()
        return torch.empty(one.bytes, dtype=torch.uint8, device=away.device)
