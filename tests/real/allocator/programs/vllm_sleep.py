"""Makes, without vLLM, the calls to glake's allocator by which vLLM's worker lets memory sleep."""

import torch

from glake import errors
from glake.integrations.vllm import RegionAllocator

MIB = 1 << 20
allocator = RegionAllocator()


def host(mark):
    return torch.full((32 * MIB,), mark, dtype=torch.uint8)


def marked(mark):
    return host(mark).cuda()


def holds(tensor, mark):
    return bool((tensor.cpu() == mark).all())


def refused(work, kind, text):
    try:
        work()
    except kind as told:
        assert text in str(told), told
    else:
        raise AssertionError(f"{text}: not refused")


def asleep():
    with allocator.use_memory_pool(tag="weights"):
        torch.empty(MIB, device="cuda")


def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


assert allocator.get_current_usage() == 0
with allocator.cudagraph_pool():
    pass
allocator.sleep(offload_tags=("weights", "cudagraph"))  # no graph has been captured yet
allocator.wake_up()
with allocator.use_memory_pool(tag="weights"):
    weights = marked(7)
with allocator.use_memory_pool(tag="kv_cache"):
    cache = marked(8)
with allocator.use_memory_pool():
    other = marked(9)
outside = marked(10)
with allocator.cudagraph_pool() as pool:
    graph = torch.cuda.CUDAGraph()
    source = marked(11)
    with torch.cuda.graph(graph, pool=pool):
        result = source.clone()
assert allocator.get_current_usage() >= 96 * MIB
addresses = [each.data_ptr() for each in (weights, cache, other)]

# Level 1: weights wait in host memory, with graphs and runtime state; the rest is dropped.
before = free()
allocator.sleep(offload_tags=("weights", "runtime", "cudagraph"))
assert free() - before >= 4 * 32 * MIB, free() - before
assert allocator.get_current_usage() == 0
allocator.sleep(offload_tags=("weights",))  # it sleeps already: no change
assert holds(outside, 10)
refused(asleep, RuntimeError, "paused")

# First weights wake, then the KV cache. Memory of another tag wakes with either.
allocator.wake_up(["weights"])
assert holds(weights, 7) and 64 * MIB <= allocator.get_current_usage() < 96 * MIB
allocator.wake_up(["kv_cache"])
allocator.wake_up()
assert addresses == [each.data_ptr() for each in (weights, cache, other)]
cache.copy_(host(12))
assert holds(cache, 12)
graph.replay()
assert holds(result, 11)

# Level 2 and a selective discard.
allocator.discard(("kv_cache",))
assert 64 * MIB <= allocator.get_current_usage() < 96 * MIB
allocator.sleep(offload_tags=("runtime",))
assert allocator.get_current_usage() == 0
allocator.wake_up()
weights.copy_(host(13))
assert holds(weights, 13)

# If there is no room to wake up, the allocator says so, stays asleep, and wakes up later.
allocator.sleep("weights")
free_bytes = free()
neighbour = torch.empty(free_bytes - 16 * MIB, dtype=torch.uint8, device="cuda")
refused(lambda: allocator.wake_up(["weights"]), errors.OutOfMemory, "")
del neighbour
torch.cuda.empty_cache()
allocator.wake_up()
assert holds(weights, 13)

# Inside a pool of PyTorch's own, memory is in that pool.
used = allocator.get_current_usage()
with torch.cuda.use_mem_pool(torch.cuda.MemPool()), allocator.use_memory_pool("weights"):
    aside = marked(14)
assert allocator.get_current_usage() == used and holds(aside, 14)

# The graphs' pool ends asleep, with its last graph.
allocator.sleep(("weights", "cudagraph"))
graph.reset()
del result, pool
allocator.sleep(("weights", "cudagraph"))
allocator.wake_up()
allocator.sleep(("weights", "cudagraph"))
allocator.wake_up()
assert holds(weights, 13) and not allocator._sleeping_graphs()
print("woken")
