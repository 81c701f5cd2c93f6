"""The demo's training job: data-parallel GPT training in two processes, on CPU or GPU.

    python benchmarks/demo/train.py --steps 30 --out losses.json

It knows nothing of glake but how to name its steps and to record: who serves torch's memory is the
environment's choice (GLAKE_ALLOCATOR), as for any job. On a GPU glake is there as its basic
plug-in; that path has not been seen on hardware yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import corpus
import torch
import torch.distributed as dist
from model import GPT, PADDING, Shape, next_token_loss
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

RANKS = 2


@dataclass(frozen=True)
class Job:
    """What is trained: the model's shape, sequences of each rank's batch, the learning rate."""

    shape: Shape
    sequences: int
    learning_rate: float = 1e-3


SIZES = {
    "small": Job(Shape(width=192, layers=8, heads=3, length=1024), sequences=4),
    "tiny": Job(Shape(width=64, layers=2, heads=2, length=512), sequences=4),
}


@dataclass(frozen=True)
class Order:
    """One run's settings: its job and batches, where results and (if asked) the trace go."""

    job: Job
    steps: list[list[bytes]]
    seed: int
    title: str
    meeting: str
    out: str
    trace: str | None


def rehearsal(steps: list[list[bytes]]) -> list[list[bytes]]:
    """A few steps that reach the whole job's peak: the first, then the longest batch twice.

    Optimizer state exists from the second step, and DDP settles its buckets in it.
    """
    longest = max(steps, key=corpus.length)
    return [steps[0], longest, longest]


def train(rank: int, order: Order) -> None:
    """One rank's part; rank 0 writes the losses, the weights' digest and the memory figures."""
    dist.init_process_group(
        "gloo", init_method=f"file://{order.meeting}", rank=rank, world_size=RANKS
    )
    result = _train(rank, order)
    if rank == 0:
        Path(order.out).write_text(json.dumps(result, indent=1) + "\n")
    # PyTorch aborts a process whose gloo thread drops its last tensor while Python exits: end with
    # work that holds none.
    dist.barrier()
    dist.destroy_process_group()


def _train(rank: int, order: Order) -> dict[str, Any]:
    device = _device(rank)
    torch.manual_seed(order.seed)
    memory = _Memory(device.index or 0, order.trace if rank == 0 else None)
    model = DistributedDataParallel(GPT(order.job.shape).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=order.job.learning_rate)
    torch.manual_seed(order.seed + 1 + rank)  # dropout differs from rank to rank
    longest = max(map(corpus.length, order.steps))
    losses = []
    bar = tqdm(order.steps, desc=order.title, unit="step", disable=rank > 0, **_bar_style())
    for batch in bar:
        memory.step()
        tokens, targets = (
            torch.tensor(rows[rank::RANKS], device=device) for rows in corpus.padded(batch, PADDING)
        )
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens), targets)
        if corpus.length(batch) == longest:
            memory.sample()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / RANKS)
        bar.set_postfix(loss=f"{losses[-1]:.3f}", tokens=tokens.shape[1], refresh=False)
    return {
        "device": str(device),
        "losses": losses,
        "weights_sha256": _digest(model),
        "parameters": sum(each.numel() for each in model.parameters()),
        "tokens_per_sequence": [corpus.length(batch) for batch in order.steps],
        **memory.report(),
    }


class _Memory:
    """glake's side of one rank: recording, step marks and figures; idle under stock torch."""

    def __init__(self, device: int, trace: str | None) -> None:
        self.mode: str | None = None
        self.device = device
        self.trace = trace
        self.covered: float | None = None
        if os.environ.get("GLAKE_ALLOCATOR", "0") == "0":
            return
        import glake
        from glake.allocator.torch import mode

        self.mode, self.glake = mode(), glake
        if trace is not None:
            glake.record(trace)

    def step(self) -> None:
        if self.mode:
            self.glake.step(self.device)

    def sample(self) -> None:
        """Takes the covered share, where most is live."""
        if self.mode == "emulation":
            self.covered = self.glake.covered_share()

    def report(self) -> dict[str, Any]:
        if not self.mode:
            return {"allocator": "torch"}
        if self.trace is not None:
            self.glake.record(None)
        found = self.glake.stats(self.device)
        return {
            "allocator": self.mode,
            "covered_share": self.covered,
            "limit_bytes": found["glake.limit_bytes"],
            "peak_physical_bytes": found["reserved_bytes.all.peak"],
            "peak_live_bytes": found["requested_bytes.all.peak"],
        }


def _device(rank: int) -> torch.device:
    """This rank's device, set up so that the same job gives the same bits."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    return device


def _bar_style() -> dict[str, Any]:
    """A live bar on a terminal; a line now and then in a log."""
    return {"ncols": 88} if sys.stderr.isatty() else {"ncols": 88, "mininterval": 10}


def _digest(model: nn.Module) -> str:
    """SHA-256 over the bytes of every weight, in order."""
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@click.command()
@click.option("--steps", default=30, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--size", default="small", show_default=True, type=click.Choice(list(SIZES)))
@click.option("--title", default="train", help="Shown by the progress bar.")
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="Results, JSON.")
@click.option("--trace", type=click.Path(dir_okay=False), help="Record rank 0's allocations.")
@click.option("--rehearse", is_flag=True, help="Only the first batch and the longest, twice.")
def main(
    steps: int, seed: int, size: str, title: str, out: str, trace: str | None, rehearse: bool
) -> None:
    """Train the demo's GPT in two processes."""
    job = SIZES[size]
    texts = corpus.documents(job.shape.length + 1)
    chosen = corpus.batches(texts, RANKS * job.sequences, steps, seed)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # both ranks are on this machine
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(RANKS))
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matmul
    with tempfile.TemporaryDirectory() as scratch:
        order = Order(
            job=job,
            steps=rehearsal(chosen) if rehearse else chosen,
            seed=seed,
            title=title,
            meeting=str(Path(scratch, "meeting")),
            out=out,
            trace=trace,
        )
        spawn(train, args=(order,), nprocs=RANKS)


if __name__ == "__main__":
    main()
