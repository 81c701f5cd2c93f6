"""A small model under DeepSpeed, two ranks over gloo: deepspeed_zero.py STAGE OFFLOAD FOLDER.

OFFLOAD is none, cpu or nvme. Rank 0 prints its losses, exactly, and what DeepSpeed and glake did.
"""

import json
import os
import sys
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

STEPS, WIDTH = 4, 512


def config(stage: int, offload: str, folder: str) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage, "contiguous_gradients": True}
    if offload != "none":
        place = {"device": offload, "pin_memory": True, "nvme_path": folder, "buffer_count": 5}
        zero["offload_optimizer"] = place
        if stage == 3:
            zero["offload_param"] = place | {"buffer_size": 1 << 21}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 1.0,
        "aio": {"block_size": 1 << 20, "queue_depth": 8},
    }


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU()]
        layers += [torch.nn.Linear(2 * WIDTH, WIDTH)]
    return torch.nn.Sequential(*layers)


def main() -> None:
    stage, offload, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    engine, *_ = deepspeed.initialize(model=model(), config=config(stage, offload, folder))
    draw = torch.Generator().manual_seed(1 + rank)
    losses = []
    for _ in range(2 * STEPS):
        x = torch.randn(4, WIDTH, generator=draw)
        loss = (engine(x) - x.roll(1, -1)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    told: dict[str, Any] = {"losses": losses, "accelerator": type(get_accelerator()).__name__}
    if "glake" in sys.modules:
        told |= facts()
    if rank == 0:
        print(json.dumps(told), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    if "glake" not in sys.modules:
        os._exit(0)  # gloo's threads sometimes abort the interpreter's end


def facts() -> dict[str, Any]:
    from glake import _C, transfer
    from glake.transfer import files

    accelerator = get_accelerator()
    return {
        "copies": transfer.stats()["plain_bytes"] + transfer.stats()["bytes"],
        "files": files.stats(),
        "pinned": _C.host_stats()["allocated_bytes.peak"],
        "allocated": accelerator.memory_allocated(),
        "unknown": accelerator.is_pinned(torch.zeros(4)),
    }


if __name__ == "__main__":
    main()
