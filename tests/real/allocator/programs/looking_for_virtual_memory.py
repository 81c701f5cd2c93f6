"""Does what packages do that look for expandable_segments:True, but with glake."""

import os
import sys
import warnings
from pathlib import Path

import torch
from torch.cuda.memory import _set_allocator_settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cases"))
from common import MIB, counting_library  # noqa: E402

conf = os.environ["PYTORCH_CUDA_ALLOC_CONF"]
torch.empty(MIB, device="cuda")

settings = torch.cuda.memory._snapshot()["allocator_settings"]
assert settings["PYTORCH_CUDA_ALLOC_CONF"].startswith(conf), settings
assert "balanced" in settings["PYTORCH_CUDA_ALLOC_CONF"] and settings["expandable_segments"]
assert settings["garbage_collection_threshold"] == 0.75

# Megatron-LM asks that one of the two holds.
assert "expandable_segments:True" not in conf or os.environ["NCCL_GRAPH_REGISTER"] == "0"

# vLLM's sleep mode, in its versions that switch the segments off around its pool.
own = torch.cuda.memory.CUDAPluggableAllocator(counting_library(), "taken", "given")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    _set_allocator_settings("expandable_segments:False")
assert any("expandable_segments has no effect" in str(each.message) for each in said), said
pool = torch.cuda.MemPool(own.allocator())
with torch.cuda.use_mem_pool(pool):
    inside = torch.full((4 * MIB,), 5, dtype=torch.uint8).cuda()
_set_allocator_settings("expandable_segments:True")
assert bool((inside.cpu() == 5).all())
assert {segment["segment_pool_id"] for segment in pool.snapshot()} == {pool.id}

print("looking ok")
