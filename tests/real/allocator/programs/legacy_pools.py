"""Private pools by GLAKE_PRIVATE_POOLS. Legacy ones come from cudaMalloc, and allow legacy IPC."""

import ctypes
import os
import sys

import torch

MIB = 1 << 20
runtime = ctypes.CDLL("libcudart.so.13")


def has_ipc_handle(tensor):
    handle = (ctypes.c_char * 64)()
    status = runtime.cudaIpcGetMemHandle(handle, ctypes.c_void_p(tensor.data_ptr()))
    runtime.cudaGetLastError()
    return status == 0


legacy = sys.argv[1] == "legacy"
source = torch.zeros(4 * MIB, dtype=torch.uint8).pin_memory()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
    kept = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    small = [torch.empty(8 << 10, device="cuda") for _ in range(100)]
    kept.copy_(source, non_blocking=True)
    passing = torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")
    place = passing.data_ptr()
    del passing
    assert torch.empty(6 * MIB, dtype=torch.uint8, device="cuda").data_ptr() == place
for value in (3, 8):
    source.fill_(value)
    graph.replay()
    assert bool((kept.cpu() == value).all())
first = min(small, key=torch.Tensor.data_ptr)  # IPC wants a segment's base
assert has_ipc_handle(kept) == legacy and has_ipc_handle(first) == legacy
assert not has_ipc_handle(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"))
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    assert has_ipc_handle(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")) == legacy
assert os.environ.get("NCCL_GRAPH_REGISTER") == (
    "1" if len(sys.argv) > 2 else None if legacy else "0"
)
if legacy:
    try:
        torch._C._cuda_getCheckpointState(0, graph.pool())
        raise AssertionError("a checkpoint of cudaMalloc's memory")
    except RuntimeError as error:
        assert "private_pools=legacy" in str(error), error
held = torch.cuda.memory_reserved()
del pool, kept, small, first, graph
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < held and torch.cuda.memory_allocated() == 0
print("pools ok")
