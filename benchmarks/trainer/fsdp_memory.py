"""What a sharded training job needs of each GPU; a script for `glake dry-run`, or for GPUs.

    glake dry-run --gpus 2xA100 torchrun --nproc-per-node 2 \\
        benchmarks/trainer/fsdp_memory.py --fsdp ours
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist

from glake.trainer.fsdp import Sharding
from glake.trainer.models import sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fsdp", choices=("ours", "torch"), default="ours")
    parser.add_argument("--model", default="gpt-large")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE")
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    config = Sharding.Config(fsdp=arguments.fsdp)
    for assignment in arguments.set:
        config.set_text(*assignment.split("=", 1))
    torch.manual_seed(1)
    with torch.device("meta"):
        model = sizes.model(arguments.model).build()
    sharded = config.build(model)
    optimizer = torch.optim.AdamW([each for _, each in sharded.named_parameters()], lr=1e-4)
    sharded.attach(optimizer)
    tokens = torch.zeros(arguments.batch, arguments.tokens, dtype=torch.int64, device="cuda")
    peaks: dict[str, str] = {}
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        loss = sharded(tokens, tokens)
        note(peaks, "forward")
        loss.total.backward()
        note(peaks, "backward")
        sharded.clip_gradients(1.0, scale=1.0 / tokens.numel())
        optimizer.step()
        note(peaks, "optimizer")
    shown = ", ".join(f"{phase} {text}" for phase, text in peaks.items())
    print(f"{arguments.fsdp}: peak of the last step, MiB asked for (and allocated): {shown}")
    dist.destroy_process_group()


def note(peaks: dict[str, str], phase: str) -> None:
    """Notes the peaks. Requested bytes count, because an allocator may happen to give a larger
    block unsplit."""
    stats = torch.cuda.memory_stats()
    asked, given = (stats[f"{name}_bytes.all.peak"] / 2**20 for name in ("requested", "allocated"))
    peaks[phase] = f"{asked:.1f} ({given:.1f})"
    torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
