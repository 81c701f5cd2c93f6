"""Statistics and snapshot agree as PyTorch's own tests demand, in every state of a block.

Blocks are live, freed, pending on few and many streams, freed in a capture, in pools of every kind,
or taken with caching off.
"""

import collections
import gc

import torch

MIB = 1 << 20


def u8(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def check(where):
    """Sums over the snapshot equal the statistics, for all memory and for each pool of sizes."""
    sums = collections.Counter()

    def add(name, pool, amount):
        sums[f"{name}.all.current"] += amount
        sums[f"{name}.{pool}_pool.current"] += amount

    for segment in torch.cuda.memory_snapshot():
        pool, expandable = segment["segment_type"], segment["is_expandable"]
        if not expandable:
            add("segment", pool, 1)
        add("allocated_bytes", pool, segment["allocated_size"])
        add("reserved_bytes", pool, segment["total_size"])
        add("active_bytes", pool, segment["active_size"])
        add("requested_bytes", pool, segment["requested_size"])
        requested = 0
        for block in segment["blocks"]:
            add("allocation", pool, block["state"] == "active_allocated")
            add("active", pool, block["state"].startswith("active_"))
            if block["state"].startswith("active_"):
                requested += block["requested_size"]
            elif len(segment["blocks"]) > 1 and not expandable:
                add("inactive_split", pool, 1)
                add("inactive_split_bytes", pool, block["size"])
        assert requested == segment["requested_size"], (where, requested, segment)
    stats = torch.cuda.memory_stats()
    for name in ("segment", "active", "inactive_split", "inactive_split_bytes", "allocation"):
        for pool in ("all", "small_pool", "large_pool"):
            sums.setdefault(f"{name}.{pool}.current", 0)
    wrong = {key: (stats[key], told) for key, told in sums.items() if stats[key] != told}
    assert not wrong, (where, wrong)


def streams(count):
    found = [torch.cuda.Stream() for _ in range(min(count, 31))]
    return found + [torch.cuda.Stream(priority=-1) for _ in range(count - len(found))]


def pending():
    for count in (1, 8, 17, 40):
        block = u8(3 * MIB - 100)
        for stream in streams(count):
            block.record_stream(stream)
        del block
        check(f"recorded on {count} streams and freed")
        torch.cuda.synchronize()
        other = u8(3 * MIB)
        check(f"recorded on {count} streams, synchronised")
        del other
        torch.cuda.empty_cache()
        check("emptied")


def captured():
    first, second, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        graph.capture_begin()
        block = torch.zeros(4 * MIB, device="cuda")
        second.wait_stream(first)
        with torch.cuda.stream(second):
            result = block + 1
            block.record_stream(second)
        del block
        first.wait_stream(second)
        graph.capture_end()
    check("freed in a capture")
    graph.replay()
    torch.cuda.synchronize()
    check("replayed")
    del graph, result
    gc.collect()
    torch.cuda.empty_cache()
    check("the graph is gone")


def pools():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        blocks = [u8(700), u8(5 * MIB)]
    check("in a pool")
    del blocks
    check("freed in a pool")
    del pool
    torch.cuda.empty_cache()
    check("the pool is gone")


def pressure():
    """Small blocks lie where large ones were, and large ones are stitched where small ones were."""
    blocks = [u8(3 * MIB) for _ in range(100)]
    small = [u8(600 << 10) for _ in range(100)]
    check("many")
    del blocks[::2], small[::2]
    check("with gaps")
    blocks += [u8(40 * MIB) for _ in range(4)]
    check("large ones in the gaps")
    try:
        while True:
            small.append(u8(900 << 10))
    except torch.OutOfMemoryError:
        check("full")
    del blocks, small
    check("freed")
    torch.cuda.empty_cache()
    check("emptied")


u8(1)
torch.cuda.set_per_process_memory_fraction(0.25)
for part in (pending, captured, pools, pressure):
    part()
assert torch.cuda.memory_stats()["active.all.current"] == 0
print("ok")
