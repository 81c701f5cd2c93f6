"""Pinned host memory for a GPU: allocation, asynchronous copies, reuse, DataLoader."""

from __future__ import annotations

import torch
from checks import DEVICE, MIB, main, sleep
from torch.utils.data import DataLoader, TensorDataset


def check_pinned_allocation() -> None:
    for size in (1, 4096, 5 * MIB):
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        assert host.is_pinned() and host.device.type == "cpu"
        host.fill_(6)
        back = host.to(DEVICE, non_blocking=True).add_(1).to("cpu")
        assert bool((back == 7).all())


def check_pinning_a_tensor() -> None:
    plain = torch.arange(100000)
    assert not plain.is_pinned()
    pinned = plain.pin_memory()
    assert pinned.is_pinned() and torch.equal(plain, pinned)


def check_reuse_waits_for_the_copy() -> None:
    for size in (5000, 4 * MIB):
        for turn in range(10):
            host = torch.full((size,), 1, dtype=torch.uint8).pin_memory()
            sleep(10)
            there = host.to(DEVICE, non_blocking=True)
            del host
            for _ in range(4):  # one may reuse the memory, once it was read
                torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(255)
            assert bool((there == 1).all()), f"{size} bytes, turn {turn}"


def check_copies_back() -> None:
    host = torch.empty(8 * MIB, dtype=torch.uint8, pin_memory=True)
    for value in range(5):
        host.copy_(torch.full_like(host, value, device=DEVICE), non_blocking=True)
        torch.cuda.synchronize()
        assert bool((host == value).all())


def check_a_data_loader_pins() -> None:
    data = TensorDataset(torch.arange(4096).view(512, 8))
    for workers in (0, 2):
        total = 0
        for (batch,) in DataLoader(data, batch_size=32, num_workers=workers, pin_memory=True):
            assert batch.is_pinned()
            total += int(batch.to(DEVICE, non_blocking=True).sum())
        assert total == 4096 * 4095 // 2


def check_statistics() -> None:
    held = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    if hasattr(torch.cuda, "host_memory_stats"):
        assert torch.cuda.host_memory_stats()["allocated_bytes.current"] >= 3 * MIB
    assert held.is_pinned()


if __name__ == "__main__":
    main(globals())
