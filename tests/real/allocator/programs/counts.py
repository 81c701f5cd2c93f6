"""Prints counts of synchronisations and of pinned memory's driver calls, to be compared."""

import torch

MIB = 1 << 20


def u8(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def show(what):
    stats, host = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
    counted = {key: host[key] for key in sorted(host) if key.startswith("num_")}
    counted |= {key: host[key] for key in ("host_alloc_time.count", "host_free_time.count")}
    device = {key: stats.get(key) for key in ("num_sync_all_streams", "num_alloc_retries")}
    print(what, device, counted)


u8(MIB)
show("one")
for _ in range(3):
    torch.cuda.empty_cache()
show("emptied three times")
try:
    u8(100 << 30)
except torch.OutOfMemoryError:
    show("out of memory")
torch.cuda.synchronize()
show("synchronised")  # the caller's own synchronisation is not counted
blocks = [torch.empty(MIB * k, dtype=torch.uint8).pin_memory() for k in (1, 2, 3)]
show("three pinned")
del blocks
torch._C._host_emptyCache()
show("freed")
torch._C._host_emptyCache()
show("nothing to free")
for _ in range(2):
    torch.empty(100, pin_memory=True)
show("from the cache")
torch.cuda.reset_accumulated_host_memory_stats()
torch.cuda.reset_accumulated_memory_stats()
show("reset")
