"""torch.cuda's memory statistics, limits and information, served by glake."""

from __future__ import annotations

import torch
from checks import DEVICE, MIB, main, raises, settle

NAMES = [
    f"{what}.{pool}.{which}"
    for what in ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
                 "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
    for pool in ("all", "small_pool", "large_pool")
    for which in ("current", "peak", "allocated", "freed")
] + ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
     "num_device_free"]  # fmt: skip


def block(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=DEVICE)


def check_every_statistic_is_there() -> None:
    stats = torch.cuda.memory_stats()
    assert not set(NAMES) - set(stats), sorted(set(NAMES) - set(stats))
    assert torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] >= 0


def check_counts_follow_tensors() -> None:
    settle()
    before, count = torch.cuda.memory_allocated(), stats("allocation.all.current")
    one, other = block(10), block(0.5)
    assert torch.cuda.memory_allocated() - before == 10 * MIB + MIB // 2
    assert stats("allocation.all.current") == count + 2
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del one, other
    assert torch.cuda.memory_allocated() == before
    assert stats("allocation.all.current") == count


def stats(name: str) -> int:
    return int(torch.cuda.memory_stats()[name])


def check_small_and_large_pool() -> None:
    settle()
    small, large = (
        stats("allocated_bytes.small_pool.current"),
        stats("allocated_bytes.large_pool.current"),
    )
    held = [block(0.25), block(6)]
    assert stats("allocated_bytes.small_pool.current") == small + MIB // 4
    assert stats("allocated_bytes.large_pool.current") == large + 6 * MIB
    del held


def check_peaks_and_resets() -> None:
    settle()
    torch.cuda.reset_peak_memory_stats()
    now = torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_allocated() == now
    held = block(32)
    del held
    assert torch.cuda.max_memory_allocated() == now + 32 * MIB
    assert torch.cuda.max_memory_reserved() >= now + 32 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == now
    torch.cuda.reset_accumulated_memory_stats()
    assert stats("allocation.all.allocated") == 0
    held = block(1)
    assert stats("allocation.all.allocated") == held.numel() // MIB == 1


def check_summary() -> None:
    assert "Allocated memory" in torch.cuda.memory_summary()
    assert "Allocated memory" in torch.cuda.memory_summary(abbreviated=True)


def check_empty_cache_gives_back() -> None:
    settle()
    before = torch.cuda.memory_reserved()
    held = block(256)
    assert torch.cuda.memory_reserved() >= before + 250 * MIB
    del held
    assert torch.cuda.memory_reserved() >= before + 250 * MIB  # cached
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 4 * MIB


def check_memory_fraction() -> None:
    settle()
    total = torch.cuda.mem_get_info()[1]
    limit = torch.cuda.memory_reserved() + 64 * MIB
    torch.cuda.set_per_process_memory_fraction(limit / total)
    assert abs(torch.cuda.get_per_process_memory_fraction() - limit / total) < 1e-9
    raises(torch.OutOfMemoryError, lambda: block(256))
    fits = block(32)
    torch.cuda.set_per_process_memory_fraction(1.0)
    more = block(256)
    assert more.numel() + fits.numel() == 288 * MIB


def check_memory_information() -> None:
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    assert total == torch.cuda.get_device_properties(0).total_memory or total > 2**33
    assert torch.cuda.mem_get_info(0)[1] == total


def check_accelerator_names() -> None:
    held = block(3)
    accelerator = torch.accelerator
    assert accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert accelerator.memory_reserved() == torch.cuda.memory_reserved()
    assert accelerator.max_memory_allocated() == torch.cuda.max_memory_allocated()
    assert accelerator.max_memory_reserved() == torch.cuda.max_memory_reserved()
    assert accelerator.memory_stats()["allocated_bytes.all.current"] == stats(
        "allocated_bytes.all.current"
    )
    del held
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    accelerator.empty_cache()
    assert accelerator.max_memory_allocated() == torch.cuda.memory_allocated()


def check_raw_allocation() -> None:
    before = torch.cuda.memory_allocated()
    pointer = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert torch.cuda.memory_allocated() == before + 3 * MIB
    torch.cuda.caching_allocator_delete(pointer)
    assert torch.cuda.memory_allocated() == before


def check_cudnn_benchmark_asks_for_the_cache() -> None:
    torch.backends.cudnn.benchmark = True
    image = torch.randn(4, 8, 32, 32, device=DEVICE)
    layer = torch.nn.Conv2d(8, 16, 3, device=DEVICE)
    found = layer(image)
    torch.backends.cudnn.benchmark = False
    wanted = torch.nn.functional.conv2d(image.cpu(), layer.weight.cpu(), layer.bias.cpu())
    assert torch.allclose(found.cpu(), wanted, atol=1e-2)


def check_matmul() -> None:
    a, b = torch.randn(512, 256, device=DEVICE), torch.randn(256, 128, device=DEVICE)
    wanted = a.cpu().double() @ b.cpu().double()
    assert torch.allclose((a @ b).cpu().double(), wanted, atol=1e-2)


def check_resized_storages_and_views() -> None:
    tensor = torch.arange(1000, device=DEVICE)
    tensor.resize_(300000)
    tensor[1000:] = 7
    part = tensor[:1000].clone()
    del tensor
    assert torch.equal(part.cpu(), torch.arange(1000))


if __name__ == "__main__":
    main(globals())
