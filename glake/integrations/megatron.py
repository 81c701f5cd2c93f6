"""Megatron-core on glake. Activations move to glake's pinned memory and back over every path. Each
buffer that is kept for ever is one driver allocation, which NCCL can register.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

from glake.errors import GlakeError
from glake.integrations import figures
from glake.integrations.replacing import replace, single_allocations, version_of
from glake.transfer.engine import default_engine
from glake.transfer.handle import Transfer
from glake.transfer.host import pinned

PACKAGE = "megatron.core"
VERSIONS = ("0.16.1", "0.20")

_ACTIVATIONS = "megatron.core.pipeline_parallel.fine_grained_activation_offload"
_BUFFERS = ("megatron.core.utils", "megatron.core.distributed.fsdp.src.megatron_fsdp.utils")


def version() -> str:
    """The package's version."""
    return version_of(PACKAGE, "megatron-core")


def install() -> None:
    """Replaces Megatron's functions. Activations that are in host memory already return by the
    way they left."""
    if _undo:
        return
    with contextlib.ExitStack() as made:
        _replace(made, _ACTIVATIONS, "ChunkOffloadHandler", "offload", _offload)
        _replace(made, _ACTIVATIONS, "ChunkOffloadHandler", "reload", _reload)
        for module in _BUFFERS:
            _replace(made, module, "GlobalMemoryBuffer", "get_tensor", _get_tensor)
        _undo.append(made.pop_all())


def uninstall() -> None:
    """Restores Megatron's functions. Activations that are in host memory return by the way they
    left."""
    while _undo:
        _undo.pop().close()


_undo: list[contextlib.ExitStack] = []


def _replace(
    made: contextlib.ExitStack, module: str, owner: str, name: str, ours: Callable[..., Any]
) -> None:
    kind = getattr(importlib.import_module(module), owner, None)
    before = vars(kind).get(name) if kind is not None else None
    if before is None:
        raise GlakeError(f"integration megatron: {module} has no {owner}.{name}")

    @functools.wraps(before)
    def instead(*args: Any, **kwargs: Any) -> Any:
        return ours(before, *args, **kwargs)

    replace(made, kind, name, instead)


class _Away(tuple[Any, ...]):
    """Megatron's state of an offloaded tensor, with the copy to host memory.

    The state is the tuple (device, host memory, whether Megatron's pool has that memory).
    Megatron's callers know an offloaded tensor by this tuple. Its reload() takes the tuple too.
    """

    transfer: Transfer


def _offload(
    before: Callable[..., Any],
    handler: Any,
    src_tensor: Any,
    pin_memory: bool = True,
    use_cpu_pool: bool = True,
) -> Any:
    if not pin_memory or src_tensor.numel() == 0 or _captured():
        return before(handler, src_tensor, pin_memory, use_cpu_pool)
    source = src_tensor.detach().contiguous()
    host = pinned(tuple(source.shape), source.dtype)
    transfer = default_engine().copy(host, source)
    figures.add("megatron", "offloaded_bytes", transfer.bytes)
    if not transfer.ordered:  # in the emulation no stream waits for the copy
        transfer.wait()
    away = _Away((src_tensor.device, host, False))
    away.transfer = transfer
    return away


def _reload(
    before: Callable[..., Any], handler: Any, state: Any, non_blocking: bool | None = None
) -> Any:
    if not isinstance(state, _Away):
        return before(handler, state, non_blocking)
    import torch

    device, host, _ = state
    there = torch.empty(host.shape, dtype=host.dtype, device=device)
    if there.device.type == "cuda":
        state.transfer.stream_wait(torch.cuda.current_stream(there.device))
    transfer = default_engine().copy(there, host)
    figures.add("megatron", "reloaded_bytes", transfer.bytes)
    if non_blocking is False or not transfer.ordered:
        transfer.wait()
    return there


def _get_tensor(
    before: Callable[..., Any],
    buffers: Any,
    tensor_shape: Any,
    dtype: Any,
    name: Any,
    mem_alloc_context: Callable[[], Any] | None = None,
) -> Any:
    key = (name, dtype)
    held = buffers.buffer.get(key)
    if held is not None and held.numel() < math.prod(tensor_shape):
        del held, buffers.buffer[key]  # the old buffer is freed before the longer one is made
    return before(buffers, tensor_shape, dtype, name, mem_alloc_context or single_allocations)


def _captured() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
