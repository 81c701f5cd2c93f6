"""Megatron-core's activations leave for glake's pinned memory and return over every path.

GLAKE_ALLOCATOR=1 GLAKE_DRIVER=sim python examples/hook_megatron.py
"""

import torch
from megatron.core.pipeline_parallel import fine_grained_activation_offload as offloading

import glake

handler = offloading.ChunkOffloadHandler.__new__(offloading.ChunkOffloadHandler)
activation = torch.randn(1024, 1024)
away = handler.offload(activation)
back = handler.reload(away)
assert torch.equal(back, activation)
told = glake.stats()
print("activations away", told["glake.integrations.megatron.offloaded_bytes"] >> 20, "MiB")
print("activations back", told["glake.integrations.megatron.reloaded_bytes"] >> 20, "MiB")
print("pinned", told["glake.host.allocated_bytes.current"] >> 20, "MiB")
