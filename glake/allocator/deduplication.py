"""Equal weights of several processes, or of one, that exist once on a GPU (docs/deduplication.md).

The weights lie in shards: read-only memory that each process has mapped. A stray write faults, and
changes no other process's model.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from glake import _C, arguments
from glake.allocator import shards, weights
from glake.allocator.shard_registry import Registry
from glake.errors import GlakeError, OutOfMemory

if TYPE_CHECKING:
    import torch

    from glake.allocator.buffer import Buffer

_lock = threading.RLock()
_shelf = shards.Shelf()
_totals = {"published_bytes": 0, "found_bytes": 0, "given_back_bytes": 0}


class Deduplicated:
    """What deduplicate() has done. As a context manager it calls close() at the end.

    It does not keep the weights alive. A shard is unmapped here when no weight lies in it any more,
    and its memory is free when no process has it mapped.

    Attributes:
        shared_bytes: bytes of the weights that lie in shards now.
        found_bytes: of these, the bytes that were there already: in a shard of another process, or
            in an equal weight of this one.
        given_back_bytes: private memory that was freed. It is less than `shared_bytes` where
            something else still holds the former memory, such as a view that was not given.
        shards: how many shards the weights lie in.
    """

    def __init__(self) -> None:
        """Has moved nothing yet."""
        self.shared_bytes = self.found_bytes = self.given_back_bytes = self.shards = 0
        self._moved: list[weights.Weight] = []

    def __repr__(self) -> str:
        return (
            f"<glake.Deduplicated: {self.shared_bytes} bytes shared in {self.shards} shards, "
            f"{self.found_bytes} found, {self.given_back_bytes} given back>"
        )

    def __enter__(self) -> Deduplicated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives every weight private memory again, with the same bytes, so that it may be written.

        Other processes keep the shards that they have. Weights that are gone, or that point to
        other memory by now, are left alone. A second call does nothing.

        Raises:
            OutOfMemory: there is no room. The weights that are left stay shared, and close() may be
                called again.
            InvalidArgument: a stream is being captured. As before.
            GlakeError: a copy failed. As before.
        """
        with _lock:
            weights.require_no_capture({weight.device for weight in self._moved})
            while self._moved:
                weight = self._moved[-1]
                try:
                    weight.make_private(_copy_of(weight))
                except OutOfMemory:
                    _C.empty_cache(weight.device)
                    weight.make_private(_copy_of(weight))
                self._moved.pop()
                self.shared_bytes -= weight.nbytes
            self.found_bytes = self.given_back_bytes = self.shards = 0
            shards.close_left()

    def _take(self, content: shards.Content, registry: Registry) -> None:
        """Moves the weights of one shard there."""
        places = _shelf.find(content)
        found = places is not None
        if places is None:
            shard, found = shards.obtain(content, registry)
            places = _shelf.keep(content, shard)
            del shard
        self.shards += len({id(shard) for _, shard, _ in places})
        before = self.given_back_bytes
        for part, shard, offset in places:
            for count, weight in enumerate(part.weights):
                self.given_back_bytes += weight.place(shard.ptr + offset, shard)
                self._moved.append(weight)
                self.shared_bytes += weight.nbytes
                self.found_bytes += weight.nbytes if found or count else 0
        if self.given_back_bytes > before:
            _C.empty_cache(content.device)  # for the next shard, and for other processes


def _copy_of(weight: weights.Weight) -> weights.Fill:
    def fill(there: int) -> None:
        shards.start_copy(there, weight.address, weight).wait()

    return fill


def deduplicate(
    things: torch.nn.Module | Mapping[str, torch.Tensor | Buffer],
    shard_size: int | str = "256MiB",
) -> Deduplicated:
    """Lets equal weights of this user's processes, and of this one, exist once on each GPU.

    The first process puts its weights into read-only shards. Processes that call this later with
    the same weights map these, and free their own memory. Each tensor, and each view of its
    storage, keeps its object, and gets another address. So call this before CUDA graphs are
    captured, and while nothing writes the weights.

    After an error the weights are private, as before the call. Where even that is refused, the
    error's `begun` is what is still shared: call its close().

    Args:
        things: a module, whose parameters are shared and whose buffers stay private; or a mapping
            of names to CUDA tensors or glake.Buffers. Equal models must have equal names.
        shard_size: bytes, or text such as "64MiB", 2 MiB or more. A shard is shared as a whole, so
            one weight that differs keeps its shard private. Processes must use the same size. At
            most this much more memory is used at a time, or the largest weight's.

    Returns:
        What was shared. Its close() makes the weights private again.

    Raises:
        WrongType: `things` is neither, or a value is no tensor and no buffer.
        InvalidArgument: a weight requires a gradient, is not on a GPU or not in glake's memory, or
            was written meanwhile; a stream is being captured; the driver cannot export memory; or
            the registry's folder is not private.
        InvalidDevice: the driver does not tell the GPU from others.
        OutOfMemory: there is no room for a shard.
        BusyTimeout: another process has been making the same shard for five minutes.
        FileFailed: the registry cannot be written.
        DriverError: the driver refused a call, such as read-only access.
    """
    size = arguments.size("shard_size", shard_size, 2 << 20)
    with _lock:
        shards.close_left()
        given = weights.found(things, _shelf.contains)
        result = Deduplicated()
        if not given:
            return result
        registry = Registry()
        registry.tidy()
        contents = shards.plan(given, size)
        try:
            for content in contents:
                result._take(content, registry)
        except BaseException as error:
            _undo(result, error)
            raise
        _totals["found_bytes"] += result.found_bytes
        _totals["published_bytes"] += result.shared_bytes - result.found_bytes
        _totals["given_back_bytes"] += result.given_back_bytes
        return result


def _undo(result: Deduplicated, error: BaseException) -> None:
    with contextlib.suppress(GlakeError):
        result.close()
    if isinstance(error, GlakeError) and result._moved:
        error.begun = result


def is_shared(address: int) -> bool:
    """Whether the address is in a shard that this process has mapped."""
    return _shelf.contains(address)


def totals() -> dict[str, int]:
    """What this process has mapped now, and what it has shared since its start."""
    return {"mapped_bytes": _shelf.bytes(), "shards": _shelf.count(), **_totals}
