"""torch.cuda.memory_stats and its relatives."""

import contextlib
import random
import threading

import torch
from common import KIB, MIB, emptied, holds, marked, refused, stat, u8


def case_a_kilobyte_is_counted_everywhere():
    before = torch.cuda.memory_stats()
    block = u8(1000)
    after = torch.cuda.memory_stats()
    for name, amount in (
        ("allocation", 1), ("active", 1), ("allocated_bytes", 1024), ("active_bytes", 1024),
        ("requested_bytes", 1000),
    ):  # fmt: skip
        for pool in ("all", "small_pool"):
            for figure in ("current", "peak", "allocated"):
                key = f"{name}.{pool}.{figure}"
                assert after[key] - before.get(key, 0) == amount, (key, after[key])
        assert after[f"{name}.large_pool.current"] == 0
    del block
    gone = torch.cuda.memory_stats()
    assert gone["allocated_bytes.all.freed"] == 1024
    assert gone["allocated_bytes.all.peak"] == 1024 and gone["allocated_bytes.all.current"] == 0
    assert gone["requested_bytes.all.freed"] == 1000


def case_nothing_is_counted_before_anything_was_had():
    stats = torch.cuda.memory_stats()
    assert not any(stats.values()), stats
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
    assert torch.cuda.memory_snapshot() == []


def case_small_and_large_are_told_apart():
    small, large = u8(MIB), u8(MIB + 1)
    assert stat("allocation.small_pool.current") == 1
    assert stat("allocation.large_pool.current") == 1
    assert stat("allocated_bytes.large_pool.current") == MIB + 512
    del small, large


def case_peaks_begin_anew():
    blocks = [u8(4 * MIB) for _ in range(5)]
    del blocks[2:]
    assert torch.cuda.max_memory_allocated() == 20 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == 8 * MIB
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
    blocks.append(u8(4 * MIB))
    assert torch.cuda.max_memory_allocated() == 12 * MIB


def case_freed_blocks_are_in_no_later_peak():
    for size, count in ((1000, 1), (4 * KIB, 500), (64 * KIB, 200), (MIB, 32), (2 * MIB, 16)):
        for later in (None, torch.cuda.MemPool()):
            emptied()
            torch.cuda.reset_peak_memory_stats()
            blocks = [u8(size) for _ in range(count)]
            del blocks
            with contextlib.nullcontext() if later is None else torch.cuda.use_mem_pool(later):
                blocks = [u8(2 * size) for _ in range(count // 2 or 1)]
            most = max(size * count, 2 * size * len(blocks))
            assert stat("requested_bytes.all.peak") == most, (size, later)
            assert stat("allocation.all.peak") == count, (size, later)
            del blocks


def case_accumulated_figures_begin_anew():
    blocks = [u8(4 * MIB) for _ in range(3)]
    del blocks[0]
    torch.cuda.reset_accumulated_memory_stats()
    for name in ("allocation", "allocated_bytes", "active", "requested_bytes", "segment"):
        assert stat(f"{name}.all.allocated") == stat(f"{name}.all.freed") == 0
    assert stat("allocation.all.current") == 2
    blocks.clear()
    assert stat("allocation.all.freed") == 2 and stat("allocated_bytes.all.freed") == 8 * MIB


def case_accelerator_says_the_same():
    kept = u8(3 * MIB)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() == 3 * MIB
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    ours, theirs = torch.accelerator.memory_stats(), torch.cuda.memory_stats()
    assert {key: ours[key] for key in ours if key in theirs} == {
        key: theirs[key] for key in ours if key in theirs
    }
    torch.accelerator.reset_peak_memory_stats()
    del kept
    assert torch.accelerator.max_memory_allocated() == 3 * MIB


def case_reserved_is_what_segments_hold():
    kept = [u8(size) for size in (100, 3 * MIB, 30 * MIB)]
    del kept[1]
    for _ in range(2):
        held = sum(segment["total_size"] for segment in torch.cuda.memory_snapshot())
        assert held == torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
        emptied()


def case_raw_blocks_count_as_tensors_do():
    stream = torch.cuda.current_stream()
    for size in (1, 512, MIB, 5 * MIB):
        before = stat("requested_bytes.all.allocated")
        ptr = torch.cuda.caching_allocator_alloc(size, stream=stream)
        assert stat("requested_bytes.all.allocated") - before == size
        torch.cuda.caching_allocator_delete(ptr)
    assert torch.cuda.memory_allocated() == 0


def case_devices_are_counted_apart():
    first, second = u8(MIB), torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:1")
    assert torch.cuda.memory_allocated(0) == MIB
    assert torch.cuda.memory_allocated(1) == 3 * MIB
    assert {s["device"] for s in torch.cuda.memory_snapshot()} == {0, 1}
    torch.cuda.reset_peak_memory_stats(1)
    del first, second
    assert torch.cuda.max_memory_allocated(0) == MIB
    assert torch.cuda.max_memory_allocated(1) == 3 * MIB


def case_retries_and_ooms_are_counted():
    total = torch.cuda.get_device_properties(0).total_memory
    kept = u8(total // 2)
    for _ in range(2):
        assert refused(total)
    assert stat("num_ooms") == 2 and stat("num_alloc_retries") == 2
    del kept


def case_summary_is_made_of_the_figures():
    kept = u8(5 * MIB)
    text = torch.cuda.memory_summary()
    assert "5120 KiB" in text and "Allocated memory" in text, text
    assert kept.is_cuda and "cuda" in torch.cuda.memory_summary(abbreviated=True).lower()


def case_random_work_keeps_contents():
    """Blocks never overlap: each holds its own mark until it is freed."""
    chance, live, held = random.Random(7), [], 0
    for step in range(250):
        if live and (held > 100 * MIB or chance.random() < 0.45):
            mark, block = live.pop(chance.randrange(len(live)))
            assert holds(block, mark), step
            held -= block.numel()
            continue
        size = chance.choice((chance.randrange(1, MIB), chance.randrange(MIB, 6 * MIB)))
        live.append((step % 251, marked(size, step % 251)))
        held += size
        if chance.random() < 0.03:
            torch.cuda.empty_cache()
    assert all(holds(block, mark) for mark, block in live)
    block = None  # the last one freed
    assert stat("requested_bytes.all.current") == sum(b.numel() for _, b in live)


def case_threads_share_it():
    wrong = []

    def work(mark):
        for size in (MIB, 3 * MIB, 700, 2 * MIB) * 10:
            block = marked(size, mark)
            if not holds(block, mark):
                wrong.append((mark, size))

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert torch.cuda.memory_allocated() == 0
    assert stat("allocation.all.allocated") == stat("allocation.all.freed") == 160


def case_free_memory_of_the_device_is_told():
    u8(1)
    free, total = torch.cuda.mem_get_info()
    kept = u8(200 * MIB)
    less, same = torch.cuda.mem_get_info()
    assert same == total and 200 * MIB <= free - less <= 220 * MIB, (free, less)
    del kept
    emptied()
    assert torch.cuda.mem_get_info()[0] >= free
    used = torch.cuda.device_memory_used()
    assert abs(total - torch.cuda.mem_get_info()[0] - used) < 64 * MIB


def case_the_limit_of_splits_is_told():
    u8(1)
    for device in (0, 1):
        assert torch.cuda.memory_stats(device)["max_split_size"] == -1  # none is set
