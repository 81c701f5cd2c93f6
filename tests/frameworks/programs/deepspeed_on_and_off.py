"""Installs DeepSpeed's hook twice, uses it, and takes it out: deepspeed_on_and_off.py FOLDER."""

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import ops
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.ops.op_builder.all_ops import ALL_OPS
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils import pin_memory_tracker

from glake import integrations, transfer


def name() -> str:
    return type(get_accelerator()).__name__


def compatible() -> list[bool]:
    """What a job, ds_report and DeepSpeed's own table learn about the NVMe tier."""
    ways = AsyncIOBuilder().is_compatible(), ALL_OPS["async_io"].is_compatible(verbose=True)
    return [*ways, ops.__compatible_ops__["async_io"]]


def main() -> None:
    assert deepspeed.__version__
    step = DeepSpeedZeroOptimizer.step
    told: dict[str, Any] = {"before": name()}
    stock = compatible()  # False where libaio's headers are missing
    integrations.install("deepspeed")
    told["installed"], first = name(), get_accelerator()
    integrations.install("deepspeed")
    told["twice"] = get_accelerator() is first and DeepSpeedZeroOptimizer.step is not step

    before = pin_memory_tracker._tracker._bytes
    pinned = first.pin_memory(torch.arange(1024.0))
    told["counted"] = pin_memory_tracker._tracker._bytes - before
    handle = AsyncIOBuilder().load().aio_handle(block_size=1 << 20, queue_depth=4)
    empty = first.pin_empty((1 << 20,), dtype=torch.float32)
    told["pinned"] = (
        torch.equal(pinned, torch.arange(1024.0))
        and all(map(first.is_pinned, (pinned, pinned[5:], empty)))
        and handle.is_pinned(empty)
        and not handle.is_pinned(torch.arange(1024.0))
        and first.pin_memory(pinned) is pinned
    )
    there = torch.randn(1 << 20)  # in the emulated GPU's memory
    file = str(Path(sys.argv[1]) / "tensor.swp")
    empty.copy_(there)
    moved = transfer.stats()
    with transfer.torch_copies():
        empty.copy_(there, non_blocking=True)
        there.copy_(empty)
    after = transfer.stats()
    told["moved"] = sum(after[each] - moved[each] for each in ("bytes", "plain_bytes"))
    assert handle.async_pwrite(empty, file) == 0
    assert handle.wait() == 1
    back = handle.new_cpu_locked_tensor(1 << 20, empty)
    assert handle.sync_pread(back, file) == 1
    assert torch.equal(back, there)
    assert handle.free_cpu_locked_tensor(back)

    told["compatible"] = compatible()
    integrations.uninstall("deepspeed")
    integrations.uninstall("deepspeed")
    told["as it was"] = compatible() == stock
    told["after"] = name()
    told["slots"] = "async_io" not in AsyncIOBuilder._loaded_ops
    told["methods"] = DeepSpeedZeroOptimizer.step is step
    print(json.dumps(told))


if __name__ == "__main__":
    main()
