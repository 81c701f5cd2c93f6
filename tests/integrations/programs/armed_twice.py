"""A hook installed twice and taken out twice leaves its package as it was: armed_twice.py NAME."""

import importlib
import sys

import glake
from glake import integrations

PLACES = {
    "cupy": ("cupy.cuda", "get_allocator"),
    "fsdp2": (
        "torch.distributed.fsdp._fully_shard._fsdp_collectives",
        "DefaultAllocMixin",
        "allocate",
    ),
    "megatron": (
        "megatron.core.pipeline_parallel.fine_grained_activation_offload",
        "ChunkOffloadHandler",
        "offload",
    ),
    "memory_saver": ("torch_memory_saver", "torch_memory_saver"),
    "vllm": ("vllm.device_allocator", "get_mem_allocator_instance"),
}


def there(name: str):
    module, *path = PLACES[name]
    found = importlib.import_module(module)
    for part in path:
        found = getattr(found, part)
    return found() if name == "cupy" else found


name = sys.argv[1]
before = there(name)
glake.enable()
integrations.uninstall(name)  # it was hooked if its package was imported
assert there(name) == before
for _ in range(2):
    integrations.install(name)
    hooked = there(name)
    assert hooked != before
    integrations.install(name)
    assert there(name) == hooked
    integrations.uninstall(name)
    assert there(name) == before
    integrations.uninstall(name)
    assert there(name) == before

# A value that somebody else set meanwhile stays.
integrations.install(name)
other = (lambda *_: None) if name == "cupy" else object()
if name == "cupy":
    importlib.import_module("cupy.cuda").set_allocator(other)
else:
    module, *path, last = PLACES[name]
    owner = importlib.import_module(module)
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, other)
integrations.uninstall(name)
assert there(name) is other
print("as it was")
