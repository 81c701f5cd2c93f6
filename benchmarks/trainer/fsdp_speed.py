"""CPU time and steps a second of glake's FSDP and of PyTorch's fully_shard, side by side.

    python benchmarks/trainer/fsdp_speed.py [--ranks 2] [--runs 3] [--steps 12]

Both train the same model in the same processes (gloo), and their steps take turns, so that other
work of the machine meets both alike. CPU time is that of all threads of all ranks. Fails if ours
takes more of it.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

sys.path.insert(0, str(Path(__file__).parents[2]))
from glake.trainer.fsdp import Sharding
from glake.trainer.models import sizes

SIDES = ("ours", "torch")
SHAPES = {  # name: (model, batch, tokens)
    "6 x 384, B=2, T=128": (lambda: sizes.gpt(6, 384, 6, vocabulary=2048, longest=256), 2, 128),
    "12 x 256, B=4, T=64": (lambda: sizes.gpt(12, 256, 4, vocabulary=2048, longest=256), 4, 64),
}


class Trainer:
    """A model under one of the two FSDPs, and its optimizer."""

    def __init__(self, side: str, model, batch: int, length: int, options: dict) -> None:
        torch.manual_seed(1)
        self.sharded = Sharding.Config(fsdp=side, **options).build(model().build(), device="cpu")
        trained = [each for _, each in self.sharded.named_parameters()]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3)
        drawn = torch.Generator().manual_seed(dist.get_rank())
        self.tokens = torch.randint(2048, (batch, length + 1), generator=drawn)
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def step(self) -> float:
        self.optimizer.zero_grad()
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        loss = self.sharded(self.tokens[:, :-1], self.tokens[:, 1:])
        loss.total.backward()
        self.sharded.clip_gradients(1.0, scale=1.0 / self.tokens.numel())
        self.optimizer.step()
        spent = torch.tensor([time.process_time() - cpu, float(loss.total.detach())])
        self.seconds.append(time.perf_counter() - wall)
        dist.all_reduce(spent)
        self.cpu.append(float(spent[0]))
        return float(spent[1])


def rank(number: int, port: int, arguments: argparse.Namespace) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(number),
        WORLD_SIZE=str(arguments.ranks),
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worst = 0.0
    for name, (model, batch, length) in SHAPES.items():
        for run in range(arguments.runs):
            sides = {side: Trainer(side, model, batch, length, {}) for side in SIDES}
            for at in range(arguments.steps + 2):
                order = SIDES if at % 2 else SIDES[::-1]
                losses = {side: sides[side].step() for side in order}
                assert abs(losses["ours"] - losses["torch"]) <= 1e-5 * losses["torch"], losses
            worst = max(worst, report(name, run, sides, number == 0))
    dist.destroy_process_group()
    if worst >= 1.0 and not number:
        sys.exit(f"ours took {worst:.2f} x fully_shard's CPU time")


def report(name: str, run: int, sides: dict[str, Trainer], speak: bool) -> float:
    """Prints a row. Returns glake's CPU time over PyTorch's. The first two steps are warm-up."""
    cpu = {side: statistics.median(each.cpu[2:]) * 1e3 for side, each in sides.items()}
    wall = {side: statistics.median(each.seconds[2:]) for side, each in sides.items()}
    if speak:
        if run == 0:
            count = sum(each.numel() for each in sides["torch"].sharded.module.parameters())
            print(f"\n{name}: {count / 1e6:.1f}M parameters, {dist.get_world_size()} ranks")
            print("| run | CPU ms a step: ours | torch | torch / ours | steps/s: ours | torch |")
            print("|---|---|---|---|---|---|")
        print(
            f"| {run + 1} | {cpu['ours']:.0f} | {cpu['torch']:.0f} "
            f"| {cpu['torch'] / cpu['ours']:.2f} "
            f"| {1 / wall['ours']:.2f} | {1 / wall['torch']:.2f} |",
            flush=True,
        )
    return cpu["ours"] / cpu["torch"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(rank, (port, arguments), arguments.ranks)


if __name__ == "__main__":
    main()
