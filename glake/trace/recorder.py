"""Sees when each storage of a fake job is made and freed, and writes an allocation trace.

A dispatch mode above torch's FakeTensorMode looks at the results of each operator. A storage that
it has not met before is an allocation. It notes the requested bytes, the current stream, and a tag
of phase, module path and operator. A weak reference to the storage tells when it is freed. Views
and in-place operators have no new storage. Memory that a fake kernel allocates inside is not seen.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from glake.trace import kinds
from glake.trace.expected import Expected
from glake.trace.scratch import Scratch
from glake.trace.where import Where

_KEEP = 4096  # the most events that are held back
_KEEP_UNSETTLED = 64 * _KEEP  # the most while the phase of one of them is not known yet


class Writer(Protocol):
    """The interface to which a recorder writes: glake.trace.format.TraceWriter."""

    def alloc(self, id: int, nbytes: int, stream: int = 0, tag: str = "") -> None: ...
    def free(self, id: int) -> None: ...
    def record_stream(self, id: int, stream: int) -> None: ...
    def step(self, n: int) -> None: ...


class _Storage:
    """One storage: its bytes now, the ID of its block (0: none), and the weak reference to it."""

    __slots__ = ("block", "nbytes", "on_device", "reference")

    def __init__(self, on_device: bool) -> None:
        self.block, self.nbytes, self.on_device = 0, 0, on_device
        self.reference: Any = None


class Recorder(TorchDispatchMode):
    """The dispatch mode. Enter it inside a FakeTensorMode that uses it, and enter `watching()`
    around both."""

    def __init__(self, writer: Writer, scratch: Scratch, device: str = "cuda") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writer, self.device, self.scratch = writer, device, scratch
        self.where, self.expected = Where(self._settle), Expected(lambda: self)
        self.live_bytes = self.peak_bytes = self.setup_bytes = self.end_bytes = 0
        self.pinned_bytes = self.pinned_peak = 0
        self.allocations = 0
        self.operators: dict[str, int] = {}
        self._storages: dict[int, _Storage] = {}
        self._events: deque[Sequence[Any]] = deque()
        self._unsettled: list[tuple[list[Any], str]] = []  # (event, operator) of phase `step`
        self._paused = 0
        self._ids = 0
        self._held = True  # set-up's events are held back, so that parameters can be named
        self._tags: dict[tuple[str, str, str], str] = {}
        self._names: dict[Any, str] = {}
        self._workspaces: set[tuple[int, int]] = set()

    # -- what the dispatcher calls ------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].device
        if any(each not in _PLAIN and not _is_fake_type(each) for each in types):
            return NotImplemented  # a wrapper such as DTensor: its own operators come back here
        if self._paused:
            return func(*args, **(kwargs or {}))
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if func is torch.ops.aten.record_stream.default:
            return self._record_stream(args[0], int(args[1].stream_id))
        if func in _NO_OUTPUT:
            return None
        out = self.expected.call(func, args, kwargs)
        fresh = False
        for tensor in _tensors(out):
            fresh |= self._see(tensor, func)
        self._take_scratch(func, args, out)
        if func is torch.ops.aten._pin_memory.default or kwargs.get("pin_memory"):
            self._pin(out)
        keep = _KEEP_UNSETTLED if self._unsettled else _KEEP
        if fresh and not self._held and len(self._events) > keep:
            self.flush()
        return out

    def _see(self, tensor: Any, func: Any) -> bool:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        if known is None:
            known = self._storages[key] = _Storage(tensor.device.type == self.device)
            known.reference = weakref.ref(storage, self._death_of(key))
        nbytes = storage.nbytes()
        if nbytes == known.nbytes:
            return False
        self._resize(known, nbytes, self._name(func))
        return True

    def _death_of(self, key: int) -> Callable[[Any], None]:
        def died(_: Any) -> None:
            known = self._storages.pop(key, None)
            if known is not None:
                self._resize(known, 0, "")

        return died

    def _resize(self, known: _Storage, nbytes: int, operator: str) -> None:
        before, known.nbytes = known.nbytes, nbytes
        if not known.on_device:
            return
        # A storage that grows is first allocated again and copied, and then the old bytes are
        # freed.
        old = known.block
        known.block = self._alloc(nbytes, operator) if nbytes else 0
        if old:
            self._events.append(("f", old))
            self.live_bytes -= before

    def _alloc(self, nbytes: int, operator: str, frames: tuple[str, str] | None = None) -> int:
        self._ids += 1
        self.allocations += 1
        self.live_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        phase, path = frames or self.where.frames()
        event = ["a", self._ids, nbytes, self._stream(), self._tag(phase, path, operator)]
        self._events.append(event)
        if phase == "step":
            self._unsettled.append((event, operator))
        return self._ids

    def _settle(self, phase: str) -> None:
        for event, operator in self._unsettled:
            event[4] = self._tag(phase, "", operator)
        self._unsettled.clear()

    def _stream(self) -> int:
        if self.device != "cuda":
            return 0
        return int(torch._C._accelerator_getStream(-1).stream_id)

    def _record_stream(self, tensor: Any, stream: int) -> None:
        known = self._storages.get(tensor.untyped_storage()._cdata)
        if known is not None and known.block:
            self._events.append(("r", known.block, stream))

    def _pin(self, out: Any) -> None:
        for tensor in _tensors(out):
            self.pinned_bytes += tensor.untyped_storage().nbytes()
            weakref.finalize(
                tensor.untyped_storage(), self._unpin, tensor.untyped_storage().nbytes()
            )
        self.pinned_peak = max(self.pinned_peak, self.pinned_bytes)

    def _unpin(self, nbytes: int) -> None:
        self.pinned_bytes -= nbytes

    # -- kernel scratch -----------------------------------------------------------------------

    def _take_scratch(self, func: Any, args: Any, out: Any) -> None:
        if self.scratch.uses_workspace(func) and _on(args, self.device):
            place = (threading.get_ident(), self._stream())
            if place not in self._workspaces and self.scratch.workspace:
                self._workspaces.add(place)
                self._alloc(self.scratch.workspace, "cublas", ("workspace", ""))
        sizes = self.scratch.sizes(func, args, out)
        if sizes and _on(args, self.device):
            blocks = [(self._alloc(each, "scratch:" + self._name(func)), each) for each in sizes]
            for block, size in blocks:
                self._events.append(("f", block))
                self.live_bytes -= size

    # -- names --------------------------------------------------------------------------------

    def _name(self, func: Any) -> str:
        name = self._names.get(func)
        if name is None:
            schema: str = func._schema.name
            name = self._names[func] = schema.replace("::", ".").replace(";", "_")
        return name

    def _tag(self, phase: str, path: str, operator: str) -> str:
        key = (phase, path, operator)
        tag = self._tags.get(key)
        if tag is None:
            frames = (each.replace(" ", "_").replace(";", "_") for each in key if each)
            tag = self._tags[key] = ";".join(frames)[:1024]
        return tag

    def name_parameters(self, modules: list[Any]) -> None:
        """Tags the held blocks with the names and kinds that glake.trace.kinds finds for them. The
        modules below `modules` (roots) get their names in later tags, too."""
        for module in modules:
            self.where.name(module, type(module).__name__)
        names: dict[int, str] = {}
        for name, tensor, kind in kinds.named(modules):
            local = getattr(tensor, "_local_tensor", tensor)
            known = self._storages.get(local.untyped_storage()._cdata)
            if known is not None and known.block:
                names[known.block] = self._tag("setup", name, kind)
        self._events = deque(
            (*event[:4], names[event[1]]) if event[0] == "a" and event[1] in names else event
            for event in self._events
        )

    # -- for the session ----------------------------------------------------------------------

    def step(self, number: int) -> None:
        """Says that step `number` begins. The first one ends set-up."""
        self._held = False
        self._unsettled.clear()
        self.where.begin_step()
        self._events.append(("s", number))

    def flush(self) -> None:
        """Writes the events seen so far. If a storage is freed meanwhile, the next call writes
        that."""
        writer, events = self.writer, self._events
        self._unsettled.clear()
        for _ in range(len(events)):
            kind, *fields = events.popleft()
            if kind == "a":
                writer.alloc(*fields)
            elif kind == "f":
                writer.free(*fields)
            elif kind == "r":
                writer.record_stream(*fields)
            else:
                writer.step(*fields)

    def live(self) -> tuple[int, int]:
        """The bytes that are live on the device now, and the most so far."""
        return self.live_bytes, self.peak_bytes

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose operators are not a part of the job."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which modules, optimizers, and storages that are resized in place are seen
        too."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, nbytes: int) -> Any:
            done = original(storage, nbytes)
            known = self._storages.get(storage._cdata)
            if known is not None and known.nbytes != nbytes and not self._paused:
                self._resize(known, nbytes, "storage.resize_")
            return done

        storages: Any = torch.UntypedStorage
        storages.resize_ = resize
        try:
            with self.where.watching():
                yield
        finally:
            storages.resize_ = original


_PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}

# Operators that change device memory in place, and have neither results nor a fake kernel.
_NO_OUTPUT = {
    torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default,
}


def _is_fake_type(kind: Any) -> bool:
    return issubclass(kind, FakeTensor)


def _tensors(out: Any) -> Iterator[Any]:
    if isinstance(out, torch.Tensor):
        if out.layout is torch.strided:
            yield out
    elif isinstance(out, (tuple, list)):
        for each in out:
            yield from _tensors(each)


def _on(args: Any, device: str) -> bool:
    return any(isinstance(each, torch.Tensor) and each.device.type == device for each in args)
