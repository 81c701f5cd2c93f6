"""What a vLLM job may name is registered once; the sleep backend and the KV cache's memory work."""

import importlib
from types import SimpleNamespace as Facts
from typing import Any

import pytest
import torch

import glake
from glake import integrations

import vllm.device_allocator  # isort: skip

MIB = 1 << 20
hook: Any = importlib.import_module("glake.integrations.vllm")


def registered() -> dict[str, Any]:
    """All that vLLM's factories know, by the names that a job gives."""
    found: dict[str, Any] = {}
    for module, factory, *_ in hook._CHOICES:
        found |= getattr(importlib.import_module(module), factory)._registry
    return found


def an_untried_version_is_told_and_left() -> None:
    version, hook.version = hook.version, lambda: "0.35.0"
    with pytest.warns(RuntimeWarning, match=r"vllm 0\.35\.0 is left as it is"):
        hook.register()
    hook.version = version
    factory: Any = importlib.import_module("vllm.v1.kv_offload.factory").OffloadingSpecFactory
    theirs = factory.register_spec
    del factory.register_spec  # as if vLLM had renamed it
    with pytest.warns(RuntimeWarning, match=r"vllm 0\.33\.0 is left as it is: .*'register_spec'"):
        hook.register()
    factory.register_spec = theirs
    assert not registered()


def each_name_is_known_once() -> None:
    for _ in range(2):
        hook.register()
    names = {"GlakeOffloadingSpec", "GlakeTieringSpec", "GlakeOffloadingConnector", "glake"}
    assert set(registered()) == names
    for module, factory, _, name, home, kind in hook._CHOICES:
        known = getattr(importlib.import_module(module), factory)._registry
        assert known[name] == (f"glake.integrations.{home}", kind)
        getattr(importlib.import_module(f"glake.integrations.{home}"), kind)


def the_backend_is_for_glakes_allocator_only() -> None:
    backend = importlib.import_module("glake.integrations.vllm_memory").GlakeSleepBackend
    assert not backend.is_supported()
    glake.enable()
    integrations.install("vllm")
    assert backend.is_supported() and backend.preserves_compiled_artifacts()
    regions = vllm.device_allocator.get_mem_allocator_instance()
    with regions.use_memory_pool("weights"):
        weights = torch.full((8 * MIB,), 3, dtype=torch.uint8)
    with regions.use_memory_pool("kv_cache"):
        cache = torch.ones(8 * MIB, dtype=torch.uint8)
    address = weights.data_ptr()
    sleeping = backend()
    sleeping.suspend(level=1)
    assert glake.stats()["glake.paused_bytes"] == 16 * MIB
    with pytest.raises(glake.RegionRefused, match="'weights', 'kv_cache' sleeps; wake_up"):
        integrations.uninstall("vllm")
    sleeping.resume(["weights"])
    assert glake.stats()["glake.paused_bytes"] == 8 * MIB
    assert weights.data_ptr() == address and bool((weights == 3).all())
    sleeping.resume()
    assert glake.stats()["glake.paused_bytes"] == 0 and cache.nbytes == 8 * MIB
    cache.fill_(5)  # it goes last, so it is kept if another tag is refused
    with regions.use_memory_pool("runtime"):
        state = torch.full((8 * MIB,), 6, dtype=torch.uint8)
    with glake.pin(state.data_ptr()), pytest.raises(glake.RegionRefused, match="pinned"):
        sleeping.suspend(level=1)
    assert glake.stats()["glake.paused_bytes"] == 8 * MIB and bool((cache == 5).all())
    sleeping.resume()
    assert bool((weights == 3).all()) and bool((state == 6).all())
    integrations.uninstall("vllm")
    assert not backend.is_supported()


def the_cache_is_in_single_allocations_unless_it_sleeps() -> None:
    kind = importlib.import_module("glake.integrations.vllm_memory").GlakeOffloadingConnector

    def memory(asleep: bool) -> Any:
        return kind(Facts(model_config=Facts(enable_sleep_mode=asleep))).get_mem_pool_context()

    assert memory(asleep=True) is None
    with memory(asleep=False):
        cache = torch.ones(3 * MIB, dtype=torch.uint8)
    assert glake.stats()["glake.contiguous_bytes"] == 4 * MIB >= cache.nbytes
    torch.ones(3 * MIB, dtype=torch.uint8)
    assert glake.stats()["glake.contiguous_bytes"] == 4 * MIB


kind = importlib.import_module("glake.integrations.vllm_memory").GlakeOffloadingConnector
without = kind(Facts(model_config=Facts(enable_sleep_mode=False)))
assert without.get_mem_pool_context() is None  # glake does not serve torch yet
an_untried_version_is_told_and_left()
each_name_is_known_once()
the_backend_is_for_glakes_allocator_only()
the_cache_is_in_single_allocations_unless_it_sleeps()
print("named")
