"""The process's transfer engine, and copies through it."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from glake import _C
from glake.errors import InvalidArgument
from glake.transfer import topology as topologies
from glake.transfer.buffers import ASK, Buffer, buffer_of
from glake.transfer.handle import Transfer, reap, stream_of
from glake.transfer.runs import Parts, block_addresses, parts_of

Stream = Any  # a torch or CuPy stream, a handle, None (the framework's current one), or UNORDERED
UNORDERED: Literal["unordered"] = "unordered"

_lock = threading.Lock()
_open: Engine | None = None


class Engine:
    """The engine over one topology. A process has one at a time: the first copy opens it over the
    machine's own topology, unless one is open; `with Engine(...)` closes it at the end.

    Args:
        topology: a preset's name, a platforms file, a Topology, or None for what GLAKE_DRIVER has.

    InvalidArgument if another is open.
    """

    def __init__(self, topology: topologies.Topology | str | Path | None = None) -> None:
        """Opens it."""
        global _open
        self.topology = _topology(topology)
        with _lock:
            if _open is not None:
                raise InvalidArgument(
                    f"an engine over {_open.topology.name} is open: close it first (a process has "
                    "one; the first copy opens it)"
                )
            _C.transfer_open(self.topology.text(), self.topology.name)
            _open = self
            atexit.register(self.close)

    def close(self) -> None:
        """Ends its threads; copies under way are cancelled. Closing twice does nothing."""
        global _open
        with _lock:
            if _open is not self:
                return
            _C.transfer_close()
            _open = None
            atexit.unregister(self.close)
        reap()

    def __enter__(self) -> Engine:
        """The engine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def stats(self) -> dict[str, Any]:
        """Copies and bytes so far, and every path's bytes, rate and state."""
        return dict(_C.transfer_stats())

    def copy(self, dst: Any, src: Any, stream: Stream = None, direct: bool = False) -> Transfer:
        """Copies `src` into `dst`: tensors, arrays, DLPack or buffer objects, or `Raw` memory.

        Args:
            dst: written to. Of the shape and item size of `src`, or both contiguous and of equal
                bytes; any strides.
            src: read.
            stream: the copy begins after the work on it, and later work there waits for the copy.
                None: the current stream of the GPU array's framework, if there is one. UNORDERED:
                it begins at once; nothing waits but the handle.
            direct: one plain copy, for comparison.

        InvalidArgument for memory that does not match, overlaps or is read-only; InvalidDevice;
        CopyFailed, from the handle, if no path is left.
        """
        to, of = buffer_of(dst, write=True), buffer_of(src)
        return self._start(parts_of(to, of), to, of, stream, direct)

    def copy_batch(self, pairs: Iterable[tuple[Any, Any]], stream: Stream = None) -> Transfer:
        """Copies each (dst, src) as `copy` does, those between the same places as one transfer."""
        import numpy as np

        groups: dict[tuple[int, int], list[tuple[Parts, Buffer, Buffer]]] = {}
        for dst, src in pairs:
            to, of = buffer_of(dst, write=True), buffer_of(src)
            groups.setdefault((to.device, of.device), []).append((parts_of(to, of), to, of))
        ids: list[int] = []
        size = 0
        keep = list(groups.values())
        for group in keep:
            parts = np.concatenate([one[0] for one in group])
            ids += self._ids(parts, group[0][1], group[0][2], stream, False)
            size += int(parts[:, 2].sum())
        return Transfer(ids, size, keep)

    def gather(self, dst: Any, blocks: Any, index: Any = None, stream: Stream = None) -> Transfer:
        """Copies blocks of `blocks` one after another into the contiguous `dst`.

        Args:
            dst: contiguous, of exactly the blocks' bytes.
            blocks: an array (its blocks lie along the first dimension) or `Blocks`.
            index: numbers of the blocks, in order; None: all.
            stream: as of `copy`.
        """
        to = self._whole(dst, write=True)
        whole, addresses, size = block_addresses(blocks, index)
        return self._blocks(to, whole, addresses, size, stream, into_blocks=False)

    def scatter(self, blocks: Any, src: Any, index: Any = None, stream: Stream = None) -> Transfer:
        """The other way: the contiguous `src` into blocks, which must differ from one another."""
        import numpy as np

        of = self._whole(src)
        whole, addresses, size = block_addresses(blocks, index)
        if not whole.writable:
            raise InvalidArgument(f"{whole} is read-only: it cannot be the destination of a copy")
        if len(np.unique(addresses)) != len(addresses):
            raise InvalidArgument("scatter: a block is named twice; which part would it keep?")
        return self._blocks(of, whole, addresses, size, stream, into_blocks=True)

    def to(self, tensor: Any, device: Any, non_blocking: bool = False) -> Any:
        """A copy of a torch tensor on `device`, as torch's `.to(device)`; itself if it is there.

        On a GPU it is ready for work on the current stream; on the CPU when the call returns,
        unless `non_blocking`: then when the current stream comes to it.
        """
        import torch

        target = torch.device(device)
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        if tensor.device == target:
            return tensor
        pinned = target.type == "cpu" and tensor.device.type == "cuda"
        made = torch.empty_like(tensor, device=target, pin_memory=pinned, requires_grad=False)
        transfer = self.copy(made, tensor.detach())
        if target.type == "cpu" and not non_blocking:
            transfer.wait()
        return made

    def _whole(self, thing: Any, write: bool = False) -> Buffer:
        found = buffer_of(thing, write)
        if not found.contiguous:
            raise InvalidArgument(f"{found} has gaps: the side that is not blocks is contiguous")
        return found

    def _blocks(
        self, flat: Buffer, whole: Buffer, addresses: Any, size: int, stream: Stream,
        into_blocks: bool,
    ) -> Transfer:
        import numpy as np

        if flat.bytes != len(addresses) * size:
            raise InvalidArgument(
                f"{len(addresses)} blocks of {size} bytes are {len(addresses) * size} bytes, and "
                f"{flat} holds {flat.bytes}"
            )
        parts = np.empty((len(addresses), 3), np.uint64)
        parts[:, 0 if into_blocks else 1] = addresses.astype(np.uint64)
        parts[:, 1 if into_blocks else 0] = flat.address + np.arange(len(addresses)) * size
        parts[:, 2] = size
        to, of = (whole, flat) if into_blocks else (flat, whole)
        return self._start(parts if size else parts[:0], to, of, stream, False)

    def _start(
        self, parts: Parts, dst: Buffer, src: Buffer, stream: Stream, direct: bool
    ) -> Transfer:
        ids = self._ids(parts, dst, src, stream, direct)
        return Transfer(ids, int(parts[:, 2].sum()) if len(parts) else 0, (dst.owner, src.owner))

    def _ids(
        self, parts: Parts, dst: Buffer, src: Buffer, stream: Stream, direct: bool
    ) -> list[int]:
        if len(parts) == 0:
            return []
        handle, gpu = _ordering(stream, dst, src)
        flags = 1 if direct else 0
        return [_C.copy_start(parts, dst.device, src.device, handle, gpu, flags)]


def _ordering(stream: Stream, dst: Buffer, src: Buffer) -> tuple[int | None, int]:
    """(stream handle or None, its GPU)."""
    if isinstance(stream, str) and stream == UNORDERED:
        return None, 0
    gpu = max(dst.device, src.device, 0)
    if stream is not None:
        return stream_of(stream, gpu if max(dst.device, src.device) > ASK + 1 else None)
    for end in (dst, src):
        if end.stream is not None:
            return end.stream, max(end.device, 0)
    return None, 0


def _topology(given: topologies.Topology | str | Path | None) -> topologies.Topology:
    if given is None:
        return topologies.current()
    if isinstance(given, topologies.Topology):
        return given
    if isinstance(given, Path) or "/" in given or given.endswith(".json"):
        return topologies.from_file(given)
    return topologies.from_preset(given)


def default_engine() -> Engine:
    """The process's engine; opens it over the machine's own topology if there is none."""
    with _lock:
        if _open is not None:
            return _open
    try:
        return Engine()
    except InvalidArgument:
        if _open is not None:  # another thread was first
            return _open
        raise
