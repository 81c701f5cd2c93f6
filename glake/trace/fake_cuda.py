"""Makes a CPU build of torch provide torch.cuda for a device that exists in name only.

The process must call `load` before `import torch` (csrc/torch/fake_cuda.cpp), and make no tensors
but fake ones. Calls that are not stubbed here fail as they do on any CPU build.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from glake import extras
from glake.allocator import adapter_build
from glake.errors import PlanError
from glake.trace.job import ATTENTION

_NO_EFFECT = (
    "init", "_lazy_init", "synchronize", "empty_cache", "ipc_collect", "manual_seed",
    "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all",
    "reset_peak_memory_stats", "reset_accumulated_memory_stats", "reset_max_memory_allocated",
    "set_per_process_memory_fraction", "_record_memory_history", "set_sync_debug_mode",
)  # fmt: skip
_SDP_BACKENDS = {"math": 0, "flash": 1, "efficient": 2}  # at::SDPBackend


def recording_torch() -> adapter_build.Torch:
    """Finds this Python's torch without importing it. Raises PlanError if it cannot record a
    job."""
    if not extras.present("torch"):
        raise PlanError(extras.missing_torch(f"recording a job ({sys.executable})"))
    torch = adapter_build.installed_torch()
    if torch.cuda is not None:
        raise PlanError(extras.cuda_torch(torch.version))
    return torch


def load(devices: int, attention: str) -> Path:
    """Builds and loads the fake driver, with 1 to 64 `devices`. It must be called before `import
    torch`.

    Raises AdapterBuildError if there is no compiler. Raises PlanError if there is no torch, if it
    is a CUDA build, or if it was imported already.
    """
    torch = recording_torch()
    if "torch" in sys.modules:
        raise PlanError("torch is imported already: the fake device must come first")
    assert attention in ATTENTION
    path = adapter_build.build(adapter_build.FAKE_CUDA)
    ctypes.CDLL(str(torch.root / "lib" / "libtorch_global_deps.so"), ctypes.RTLD_GLOBAL)
    shim = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    shim.glake_fake_cuda(devices, _SDP_BACKENDS[attention])
    return path


def install(devices: int, total_bytes: int, live: Callable[[], tuple[int, int]]) -> None:
    """Stubs torch.cuda with `devices` devices of `total_bytes` each. live() returns the bytes that
    are allocated now, and the most so far."""
    import torch

    _define_streams()
    for name, stub in _queries(devices, total_bytes, live).items():
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, stub)
    torch.cuda._initialized = True
    torch.utils.swap_tensors = _swapper(torch.utils.swap_tensors)
    _define_foreach()


def _define_streams() -> None:
    import torch

    class Stream(torch.Stream):
        def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
            if "stream_id" in kwargs:
                return super().__new__(cls, **kwargs)
            return super().__new__(cls, device=_device(device), priority=priority)

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        def wait_event(self, event: Any) -> None:
            event.wait(self)

    class Event(torch.Event):
        def __new__(cls, enable_timing: bool = False, **_: Any) -> Any:
            return super().__new__(cls, device="cuda", enable_timing=enable_timing)

    def current_stream(device: Any = None) -> Any:
        found = torch._C._accelerator_getStream(_device(device).index)
        return Stream(stream_id=found.stream_id, device_index=found.device_index, device_type=1)

    def default_stream(device: Any = None) -> Any:
        return Stream(stream_id=0, device_index=_device(device).index, device_type=1)

    @contextlib.contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        if chosen is None:
            yield
            return
        with chosen:
            yield

    def set_stream(chosen: Any) -> None:
        torch._C._accelerator_setStream(chosen)

    Stream.__module__ = Event.__module__ = "torch.cuda"
    for made in (Stream, Event, current_stream, default_stream, stream, set_stream):
        setattr(torch.cuda, made.__name__, made)
    for module, name, made in (
        (torch.cuda.streams, "Stream", Stream),
        (torch.cuda.streams, "Event", Event),
        (torch.cuda, "StreamContext", stream),
    ):
        setattr(module, name, made)


def _device(device: Any) -> Any:
    """A torch.device with an index, from None, an index, a name or a device."""
    import torch

    if isinstance(device, int):
        return torch.device("cuda", device if device >= 0 else current_device())
    found = torch.device(device if device is not None else "cuda")
    return found if found.index is not None else torch.device("cuda", current_device())


def current_device() -> int:
    """The index of the calling thread's device."""
    import torch

    return int(torch._C._accelerator_getDeviceIndex())


def _queries(devices: int, total_bytes: int, live: Callable[[], tuple[int, int]]) -> dict[str, Any]:
    import torch

    properties = SimpleNamespace(
        name="glake fake device", major=9, minor=0, total_memory=total_bytes,
        multi_processor_count=132, warp_size=32, is_integrated=0, is_multi_gpu_board=0,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
        L2_cache_size=50 << 20, gcnArchName="", uuid="",
    )  # fmt: skip

    def stats(device: Any = None) -> dict[str, int]:
        now, peak = live()
        names = ("allocated_bytes", "reserved_bytes", "active_bytes")
        kinds = (("current", now), ("peak", peak))
        return {f"{name}.all.{kind}": value for name in names for kind, value in kinds}

    def nothing() -> Callable[..., None]:
        return lambda *_, **__: None  # torch._dynamo's tables need a new one for each name

    class device(contextlib.ContextDecorator):
        def __init__(self, chosen: Any) -> None:
            self.index, self.before = _device(chosen).index, 0

        def __enter__(self) -> None:
            self.before = torch._C._accelerator_exchangeDevice(self.index)

        def __exit__(self, *_: Any) -> None:
            torch._C._accelerator_setDeviceIndex(self.before)

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "device": device,
        "device_count": lambda: devices,
        "_device_count_nvml": lambda: devices,
        "current_device": current_device,
        "set_device": lambda chosen: torch._C._accelerator_setDeviceIndex(_device(chosen).index),
        "_exchange_device": lambda index: torch._C._accelerator_exchangeDevice(index),
        "_maybe_exchange_device": lambda index: torch._C._accelerator_maybeExchangeDevice(index),
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: (properties.major, properties.minor),
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: ["sm_90"],
        "can_device_access_peer": lambda *_: True,
        "mem_get_info": lambda *_: (max(0, total_bytes - live()[0]), total_bytes),
        "memory_allocated": lambda *_: live()[0],
        "memory_reserved": lambda *_: live()[0],
        "max_memory_allocated": lambda *_: live()[1],
        "max_memory_reserved": lambda *_: live()[1],
        "memory_stats": stats,
        "memory_summary": lambda *_, **__: f"{live()[0]} bytes live, recorded by glake plan",
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * devices,
        "initial_seed": lambda: 0,
        **{name: nothing() for name in _NO_EFFECT},
    }


def _swapper(original: Callable[..., Any]) -> Callable[..., Any]:
    """A torch.utils.swap_tensors that also takes fake tensors to which the fake mode's memo has
    weak references.

    Module.to() swaps fake parameters, and the original function refuses them.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    def swap_tensors(one: Any, other: Any) -> None:
        if not (isinstance(one, FakeTensor) and isinstance(other, FakeTensor)):
            original(one, other)
            return
        one.__class__, other.__class__ = other.__class__, one.__class__
        one.__dict__, other.__dict__ = other.__dict__, one.__dict__
        torch._C._swap_tensor_impl(one, other)

    return swap_tensors


def _define_foreach() -> None:
    """Lets optimizers take the multi-tensor path for fake tensors, as they do for CUDA's."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim.optimizer import _foreach_supported_types as of_optimizers
    from torch.utils._foreach_utils import _foreach_supported_types as of_utilities

    of_optimizers.append(FakeTensor)
    of_utilities.append(FakeTensor)
