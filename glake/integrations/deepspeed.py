"""DeepSpeed on glake: pinned memory, the NVMe tier, ZeRO-Offload's copies, memory statistics.

DeepSpeed's accelerator gets a subclass whose page-locked memory comes from glake's host pool.
Modules of glake replace its extensions `async_io` and `pin_memory`. They need no compiler and no
libaio. The methods that copy gradients and parameters between GPU and host copy over every path.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from typing import Any

from glake import _C
from glake.errors import GlakeError
from glake.integrations import deepspeed_io, figures
from glake.integrations.replacing import replace, replace_item, version_of
from glake.transfer.torch_mode import torch_copies

PACKAGE = "deepspeed"
VERSIONS = ("0.19.8", "0.20")

_GRADIENTS = "runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer"
_SHARDS = "runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3"
_PARAMETERS = "runtime.zero.partition_parameters", "Init"
# Methods of DeepSpeed that copy between GPU and host memory. Each row has a module, a class, a
# method, and attributes of the object. An attribute that is true says that the object keeps
# something in host memory. If all of them exist and are false, the method runs unchanged, because
# every torch call in the scope takes longer. If a row has no attributes, the method always copies
# over every path.
COPYING = (
    (*_GRADIENTS, "async_accumulate_grad_in_cpu_via_gpu", ()),
    (*_GRADIENTS, "async_inplace_copy_grad_to_fp32_buffer_from_gpu", ()),
    (*_GRADIENTS, "step", ("cpu_offload",)),
    (*_GRADIENTS, "offload_states", ()),
    (*_GRADIENTS, "reload_states", ()),
    (*_SHARDS, "partition_grads", ("offload_optimizer",)),
    (
        *_SHARDS,
        "_reassign_or_swap_out_partitioned_parameters",
        ("offload_optimizer", "offload_param"),
    ),
    (*_SHARDS, "offload_states", ()),
    (*_SHARDS, "reload_states", ()),
    (*_PARAMETERS, "_allgather_param", ("pin_memory",)),
    (*_PARAMETERS, "_allgather_params_sequential", ("pin_memory",)),
    (*_PARAMETERS, "_partition_param", ("pin_memory",)),
)
_PIN_SLOT = "_deepspeed_pin_memory_op_module"  # where DeepSpeed keeps the extension in sys


def version() -> str:
    """The version of the package."""
    return version_of(PACKAGE, PACKAGE)


def install() -> None:
    """Puts glake's parts in place. Engines and swappers that exist already keep their parts."""
    if _undo:
        return
    with contextlib.ExitStack() as made:
        accelerators: Any = importlib.import_module("deepspeed.accelerator.real_accelerator")
        before = accelerators.get_accelerator()
        ours = _accelerator(before)
        accelerators.set_accelerator(ours)
        made.callback(_give_back, accelerators, ours, before)
        _fill_slots(made, before)
        for module, owner, name, offloads in COPYING:
            _wrap(made, module, owner, name, offloads)
        _undo.append(made.pop_all())


def uninstall() -> None:
    """Restores DeepSpeed's own parts. Memory that glake pinned stays until its tensors are gone."""
    while _undo:
        _undo.pop().close()


_undo: list[contextlib.ExitStack] = []


def _give_back(accelerators: Any, ours: Any, before: Any) -> None:
    """Restores one attribute, unless somebody has set another value since."""
    if accelerators.get_accelerator() is ours:
        accelerators.set_accelerator(before)


def _fill_slots(made: contextlib.ExitStack, accelerator: Any) -> None:
    for package in ("deepspeed.ops.op_builder", "op_builder"):
        builder = sys.modules.get(f"{package}.builder")
        if builder is not None:
            loaded = builder.OpBuilder._loaded_ops
            for name in ("async_io", "pin_memory"):
                replace_item(made, loaded, name, deepspeed_io.module(name))
    replace(made, sys, _PIN_SLOT, deepspeed_io.module("pin_memory"))
    _tell_it_is_served(made, accelerator.get_op_builder("AsyncIOBuilder"))


def _tell_it_is_served(made: contextlib.ExitStack, builder: Any) -> None:
    """Makes DeepSpeed report these extensions as available. Otherwise jobs and ds_report would look
    for libaio, which is not needed."""
    ops = importlib.import_module("deepspeed.ops")

    def ask() -> None:  # DeepSpeed makes its table of answers when it is first read
        if "__compatible_ops__" in vars(ops):
            ops.__compatible_ops__[builder.NAME] = builder().is_compatible()

    made.callback(ask)
    replace(made, builder, "is_compatible", lambda _, verbose=False: True)
    ask()


def _wrap(
    made: contextlib.ExitStack, module: str, owner: str, name: str, offloads: tuple[str, ...]
) -> None:
    kind = getattr(importlib.import_module(f"{PACKAGE}.{module}"), owner)
    before = vars(kind).get(name)
    if before is None:
        raise GlakeError(f"integration deepspeed: {module}.{owner} has no method {name}")

    @functools.wraps(before)
    def through_the_engine(self: Any, *args: Any, **kwargs: Any) -> Any:
        if offloads and not any(getattr(self, each, True) for each in offloads):
            return before(self, *args, **kwargs)
        with torch_copies() as taken:
            try:
                return before(self, *args, **kwargs)
            finally:
                figures.add("deepspeed", "copied_bytes", taken.bytes)

    replace(made, kind, name, through_the_engine)


def _accelerator(before: Any) -> Any:
    """The accelerator in use, as an object of a subclass of its class."""
    base = type(before)
    abstract: Any = importlib.import_module("deepspeed.accelerator.abstract_accelerator")
    kinds = (_Pinned, base) if before._name == "cuda" else (_Pinned, _Statistics, base)
    kind: Any = type(f"Glake{base.__name__}", kinds, {})
    # pin_memory() of CPU_Accelerator pins nothing. That of the other accelerators counts, and calls
    # the methods that _Pinned has.
    kind.pin_memory = abstract.DeepSpeedAccelerator.pin_memory
    made = kind.__new__(kind)
    made.__dict__.update(before.__dict__)
    return made


class _Pinned:
    """Page-locked memory of glake's host pool, which DeepSpeed counts as before."""

    _torch_pins_host_memory = True

    def _torch_pin_memory(self, tensor: Any) -> Any:
        if self._torch_is_pinned(tensor):
            return tensor
        return deepspeed_io.locked(tuple(tensor.shape), tensor.dtype).copy_(tensor.detach())

    def _torch_empty_pinned(self, tensor: Any, shape: Any) -> Any:
        return deepspeed_io.locked(tuple(shape), tensor.dtype)

    def _torch_is_pinned(self, tensor: Any) -> bool:
        return deepspeed_io.is_pinned(tensor)


class _Statistics:
    """GPU memory as glake counts it, for DeepSpeed's CPU accelerator, which the emulation uses."""

    def empty_cache(self) -> None:
        _C.empty_cache()

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        return dict(_C.stats(device_index or 0))

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self._bytes("allocated_bytes.all.current", device_index)

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self._bytes("allocated_bytes.all.peak", device_index)

    def memory_reserved(self, device_index: int | None = None) -> int:
        return self._bytes("reserved_bytes.all.current", device_index)

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return self._bytes("reserved_bytes.all.peak", device_index)

    memory_cached, max_memory_cached = memory_reserved, max_memory_reserved

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        _C.reset_peak_stats(device_index or 0)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def _bytes(self, name: str, device_index: int | None) -> int:
        return int(_C.stats(device_index or 0)[name])
