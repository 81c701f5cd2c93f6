"""torch.cuda.MemPool in all its forms, and pluggable allocators."""

import ctypes
import threading
import time

import torch
from common import (
    KIB,
    MIB,
    counting_library,
    emptied,
    holds,
    live_blocks,
    marked,
    refused,
    room_for,
    segments_of,
    stat,
    u8,
)


class Counting:
    """A pluggable allocator whose calls are counted."""

    def __init__(self, take="taken"):
        path = counting_library()
        self.pluggable = torch.cuda.memory.CUDAPluggableAllocator(path, take, "given")
        self.library = ctypes.CDLL(path)

    def allocator(self):
        return self.pluggable.allocator()

    @property
    def made(self):
        return ctypes.c_int.in_dll(self.library, "made").value

    @property
    def freed(self):
        return ctypes.c_int.in_dll(self.library, "freed").value


def case_each_pool_has_an_id_of_its_own():
    handles = [torch.cuda.graph_pool_handle(), torch.cuda.MemPool().id, torch.cuda.MemPool().id]
    assert len(set(handles)) == 3 and (0, 0) not in handles
    found = []
    threads = [threading.Thread(target=lambda: found.append(torch.cuda.MemPool().id))
               for _ in range(4)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 4


def case_memory_of_a_pool_is_the_pools():
    pool, other = torch.cuda.MemPool(), u8(3 * MIB)
    with torch.cuda.use_mem_pool(pool):
        inside = marked(5 * MIB, 4)
    outside = marked(5 * MIB, 5)
    owner = {s["address"]: tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
    assert set(owner.values()) == {(0, 0), tuple(pool.id)}
    (segment,) = pool.snapshot()
    assert segment["address"] <= inside.data_ptr() < segment["address"] + segment["total_size"]
    assert not segment["address"] <= outside.data_ptr() < segment["address"] + segment["total_size"]
    assert holds(inside, 4) and holds(outside, 5) and other.is_cuda
    assert torch.cuda.memory_allocated() == 13 * MIB


def case_the_pool_is_used_again_and_nobody_else_may():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block = u8(5 * MIB)
        place = block.data_ptr()
        del block
    assert u8(5 * MIB).data_ptr() != place
    with torch.cuda.use_mem_pool(pool):
        assert u8(5 * MIB).data_ptr() == place


def case_users_of_a_pool_are_counted():
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        kept = u8(MIB)
        assert pool.use_count() == 2
    assert pool.use_count() == 1 and kept.is_cuda


def case_a_pool_that_ends_gives_its_memory_back():
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = u8(5 * MIB)
    del pool
    torch.cuda.empty_cache()
    assert holds(kept.fill_(0), 0) and torch.cuda.memory_reserved() > before
    del kept
    emptied()
    assert torch.cuda.memory_reserved() == before


def case_pools_nest():
    pools, kept = [torch.cuda.MemPool() for _ in range(3)], []
    with torch.cuda.use_mem_pool(pools[0]):
        kept.append(u8(20 * MIB))
        with torch.cuda.use_mem_pool(pools[1]):
            kept.append(u8(20 * MIB))
            with torch.cuda.use_mem_pool(pools[2]):
                kept.append(u8(20 * MIB))
            kept.append(u8(20 * MIB))
        kept.append(u8(20 * MIB))
    held = [sum(s["allocated_size"] for s in segments_of(pool.id)) for pool in pools]
    assert held == [40 * MIB, 40 * MIB, 20 * MIB], held


def case_only_the_thread_that_asked_uses_it():
    pool, ready, over = torch.cuda.MemPool(), threading.Event(), threading.Event()
    places = []

    def inside():
        with torch.cuda.use_mem_pool(pool):
            block = u8(MIB)
            del block
            ready.set()
            over.wait(30)

    thread = threading.Thread(target=inside)
    thread.start()
    ready.wait(30)
    kept = u8(2 * MIB)
    for segment in torch.cuda.memory_snapshot():
        places.append((tuple(segment["segment_pool_id"]), segment["active_size"]))
    over.set()
    thread.join()
    active = {pool: sum(size for owner, size in places if owner == pool) for pool, _ in places}
    assert active == {(0, 0): 2 * MIB, tuple(pool.id): 0} and kept.is_cuda


def case_emptying_inside_a_pool_leaves_the_others():
    pool, outside = torch.cuda.MemPool(), u8(30 * MIB)
    place = outside.data_ptr()
    del outside
    with torch.cuda.use_mem_pool(pool):
        u8(5 * MIB)
        torch.cuda.empty_cache()
    again = u8(30 * MIB)
    assert again.data_ptr() == place


def case_blocks_of_an_unsplit_pool_stay_whole():
    split, whole = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
    kept = []
    for pool in (split, whole):
        for _ in range(2):
            with torch.cuda.use_mem_pool(pool):
                kept.append(u8(4 * MIB))
    assert sum(len(s["blocks"]) for s in whole.snapshot()) == 2, whole.snapshot()
    with torch.cuda.use_mem_pool(whole):
        place = kept.pop().data_ptr()
        assert u8(3 * MIB).data_ptr() == place


def case_a_pool_may_lend_when_memory_runs_out():
    keeps, lends = torch.cuda.MemPool(), torch.cuda.MemPool(use_on_oom=True)
    u8(1)
    with room_for(80 * MIB):
        with torch.cuda.use_mem_pool(keeps):
            first = u8(40 * MIB)
        with torch.cuda.use_mem_pool(lends):
            second = u8(40 * MIB)
        place = second.data_ptr()
        assert refused(40 * MIB)
        del first, second
        third = u8(30 * MIB)
        assert third.data_ptr() == place
        assert refused(30 * MIB)
        del third
        with torch.cuda.use_mem_pool(lends):
            assert u8(20 * MIB).data_ptr() == place


def case_a_pool_lends_what_its_own_allocator_gave():
    counting = Counting()
    keeps = torch.cuda.MemPool(counting.allocator())
    lends = torch.cuda.MemPool(counting.allocator(), use_on_oom=True)
    u8(1)
    with room_for(80 * MIB):
        with torch.cuda.use_mem_pool(keeps):
            u8(20 * MIB)
        with torch.cuda.use_mem_pool(lends):
            place = u8(60 * MIB).data_ptr()
        lent = u8(50 * MIB)
        assert lent.data_ptr() == place and len(lends.snapshot()) == 1
        assert torch.cuda.memory_allocated() == 50 * MIB
        assert refused(20 * MIB), "the other pool lends nothing"
        with torch.cuda.use_mem_pool(keeps):
            assert refused(30 * MIB), "no pool is lent to another"
        del lent
        with torch.cuda.use_mem_pool(lends):
            assert u8(60 * MIB).data_ptr() == place
        assert refused(70 * MIB), "its memory stays with the pool"
        assert len(lends.snapshot()) == 1 and counting.made == 2


def case_a_pools_own_allocator_is_asked():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        kept = marked(5 * MIB, 8)
    assert counting.made == 1 and counting.freed == 0
    u8(30 * MIB)
    assert counting.made == 1
    assert holds(kept, 8)
    del kept
    with torch.cuda.use_mem_pool(pool):
        again = u8(5 * MIB)
    assert counting.made == 1, "its memory is kept for it"
    del again, pool
    emptied()
    assert counting.freed == counting.made == 1


def case_small_blocks_share_what_its_allocator_gave():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    kept = []
    with torch.cuda.use_mem_pool(pool):
        for made in (1, 1, 2):
            kept.append(u8(MIB))
            assert len(pool.snapshot()) == counting.made == made
        kept += [u8(600) for _ in range(100)]
    assert counting.made == 2
    assert stat("allocated_bytes.all.current") == 3 * MIB + 100 * 1024
    kept.clear()
    del pool
    emptied()
    assert counting.freed == 2 and torch.cuda.memory_reserved() == 0


def case_many_small_blocks_cost_few_requests():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        kept = [marked(8 * KIB, k % 251) for k in range(1000)]
    assert counting.made <= 5, counting.made
    assert all(holds(block, k % 251) for k, block in enumerate(kept) if k % 97 == 0)
    del kept[::2]
    with torch.cuda.use_mem_pool(pool):
        kept += [u8(8 * KIB) for _ in range(500)]
    assert counting.made <= 5 and live_blocks(pool.id) == 1000


def case_a_pools_own_memory_is_joined_when_freed():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        blocks = [u8(4 * MIB) for _ in range(5)]
        assert counting.made == 1
        places = [block.data_ptr() for block in blocks]
        assert places == [places[0] + 4 * MIB * k for k in range(5)]
        del blocks[1]
        del blocks[2]
        (segment,) = pool.snapshot()
        assert sum(b["state"] == "inactive" for b in segment["blocks"]) == 2
        del blocks[1]
        wide = u8(14 * MIB)
        assert counting.made == 2, "a request of 10 MiB or more has a segment of its own"
        assert u8(9 * MIB).data_ptr() == places[1] and wide.is_cuda


def case_the_best_fit_of_a_pools_own_memory_is_taken():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        sizes = [7, 2, 4, 2, 5]
        blocks = [u8(size * MIB) for size in sizes]
        places = [block.data_ptr() for block in blocks]
        del blocks[4], blocks[2], blocks[0]
        assert u8(3 * MIB).data_ptr() == places[2]
        assert u8(5 * MIB).data_ptr() == places[4]
    assert counting.made == 1


def case_a_pools_own_memory_is_one_streams():
    counting, side = Counting(), torch.cuda.Stream()
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        u8(8 * KIB)
        with torch.cuda.stream(side):
            u8(8 * KIB)
    assert counting.made == 2
    assert {s["stream"] for s in pool.snapshot()} == {0, side.cuda_stream}


def case_only_idle_segments_of_an_ended_pool_go_back():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        small, large = u8(600), u8(5 * MIB)
        del large
        torch.cuda.empty_cache()
    assert (counting.made, counting.freed) == (2, 0), "a pool in use keeps its memory"
    del pool
    emptied()
    assert counting.freed == 1 and torch.cuda.memory_reserved() == 2 * MIB
    assert holds(small.fill_(0), 0)
    del small
    emptied()
    assert counting.freed == 2 and torch.cuda.memory_reserved() == 0


def case_what_is_idle_goes_to_a_pools_allocator_that_is_refused():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    take = counting.library.taken
    take.restype, take.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    assert take(400 * MIB, 0, None) is not None  # unknown to torch's allocators
    u8(torch.cuda.mem_get_info()[0] - 64 * MIB)  # freed at once, so idle
    assert torch.cuda.mem_get_info()[0] < 200 * MIB
    with torch.cuda.use_mem_pool(pool):
        assert u8(200 * MIB).is_cuda
    assert counting.made == 2


def case_statistics_of_a_pools_own_memory():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        blocks = [u8(3 * MIB) for _ in range(3)] + [u8(700) for _ in range(3)] + [u8(12 * MIB)]
        del blocks[4], blocks[1]
        torch.cuda.reset_peak_memory_stats()
        del blocks[0]
    expected = {
        "allocation.all": (4, 5), "allocation.small_pool": (2, 2), "active.large_pool": (2, 3),
        "segment.all": (3, 3), "segment.large_pool": (2, 2),
        "allocated_bytes.all": (15 * MIB + 2 * KIB, 18 * MIB + 2 * KIB),
        "reserved_bytes.all": (34 * MIB, 34 * MIB),
        "inactive_split.all": (4, 4), "inactive_split.large_pool": (2, 2),
        "inactive_split_bytes.large_pool": (17 * MIB, 17 * MIB),
    }  # fmt: skip
    stats = torch.cuda.memory_stats()
    found = {key: (stats[f"{key}.current"], stats[f"{key}.peak"]) for key in expected}
    assert found == expected, {k: (found[k], expected[k]) for k in found if found[k] != expected[k]}
    assert stats["allocation.all.allocated"] == 7 and stats["allocation.all.freed"] == 3
    assert stats["num_device_alloc"] == counting.made == 3
    shot = pool.snapshot()
    assert sum(s["total_size"] for s in shot) == 34 * MIB
    assert sum(s["active_size"] for s in shot) == 15 * MIB + 2 * KIB
    free = [b["size"] for s in shot for b in s["blocks"] if b["state"] == "inactive"]
    assert sorted(free)[-2:] == [6 * MIB, 11 * MIB] and len(free) == 4


def case_peaks_are_of_a_pools_own_memory_and_the_rest():
    pool = torch.cuda.MemPool(Counting().allocator())
    ours = u8(30 * MIB)
    with torch.cuda.use_mem_pool(pool):
        kept = u8(12 * MIB)
    more = u8(20 * MIB)
    del ours, more
    emptied()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.peak"] == 62 * MIB
    assert stats["allocated_bytes.all.current"] == 12 * MIB and kept.is_cuda


def case_blocks_of_an_unsplit_pools_allocator_stay_whole():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator(), no_split=True)
    with torch.cuda.use_mem_pool(pool):
        kept = [u8(4 * MIB) for _ in range(2)]
    assert counting.made == 2 and all(len(s["blocks"]) == 1 for s in pool.snapshot())
    with torch.cuda.use_mem_pool(pool):
        place = kept.pop().data_ptr()
        assert u8(3 * MIB).data_ptr() == place


def case_many_blocks_of_a_pools_allocator_are_found_fast():
    """Twelve times as many blocks take about twelve times the CPU time, not a hundred times."""
    pool = torch.cuda.MemPool(Counting().allocator())

    def taken(count):
        begun = time.process_time()
        kept = [u8(512 * (1 + k % 7)) for k in range(count)]
        del kept[::2]
        kept += [u8(512 * (1 + k % 5)) for k in range(count // 2)]
        spent = time.process_time() - begun
        assert live_blocks(pool.id) == len(kept)
        return spent

    with torch.cuda.use_mem_pool(pool):
        taken(1000)
        few, many = (min(taken(count) for _ in range(2)) for count in (2500, 30000))
    assert many < 40 * few, (few, many)


def case_managed_memory_can_be_a_pools():
    counting = Counting("managed")
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        kept = marked(3 * MIB, 6)
    assert counting.made == 1 and holds(kept, 6)
    torch.cuda.synchronize()
    assert ctypes.cast(kept.data_ptr(), ctypes.POINTER(ctypes.c_uint8))[12345] == 6


def case_memory_outlives_its_pool_and_its_allocator():
    counting = Counting()
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        kept = marked(1000, 3)
    library = counting.library
    freed = ctypes.c_int.in_dll(library, "freed")
    del pool, counting
    emptied()
    assert freed.value == 0 and holds(kept, 3)
    del kept
    emptied()
    assert freed.value == 1


def case_a_pluggable_allocator_can_serve_everything():
    counting = Counting()
    torch.cuda.memory.change_current_allocator(counting.pluggable)
    kept = marked(3 * MIB, 2)
    assert counting.made >= 1 and holds(kept, 2)
    del kept
    assert counting.freed >= 1


def case_record_stream_holds_a_pools_block():
    counting, side = Counting(), torch.cuda.Stream()
    pool = torch.cuda.MemPool(counting.allocator())
    with torch.cuda.use_mem_pool(pool):
        block = u8(5 * MIB)
        block.record_stream(side)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1000)
        del block
        torch.cuda.synchronize()
        other = u8(5 * MIB)
    assert counting.made == 1 and other.is_cuda and live_blocks(pool.id) == 1
