"""Steps to a given loss of AdamW, AGD and WSAM, on a small GPT over real text.

optimizers.py [--steps N] [--json FILE]: the text is the source of Python's own standard library,
byte by byte. A part of its files is held out, and the loss is that of the held-out part. Each
optimizer is tuned over the same number of settings, on a seed of its own. The best setting then
runs with three more seeds. The rate rises for 20 steps and then stays, so that a loss reached early
counts as much as one at the end. The target is the highest loss with which a seed of AdamW ends, so
that all of these reach it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import sysconfig
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from glake.trainer.models.sizes import BYTES, gpt
from glake.trainer.optimizers import AGD, WSAM, AdamW, Optimizer, Schedule

LENGTH, SEQUENCES, EVERY = 64, 8, 10  # of a sequence, of a batch, steps between evaluations
TUNING_SEED, SEEDS = 100, (0, 1, 2)
RATES = (1e-3, 3e-3, 1e-2)


def settings() -> dict[str, list[Optimizer.Config]]:
    """Six settings for each optimizer. AGD's authors take a tenth of AdamW's rate."""
    return {
        "AdamW": [
            AdamW.Config(lr=lr, betas=(0.9, beta))
            for lr, beta in itertools.product(RATES, (0.95, 0.999))
        ],
        "AGD": [
            AGD.Config(lr=lr / 10, delta=delta)
            for lr, delta in itertools.product(RATES, (1e-14, 1e-5))
        ],
        "WSAM": [
            WSAM.Config(base=AdamW.Config(lr=lr), rho=0.05, gamma=gamma)
            for lr, gamma in itertools.product(RATES, (0.5, 0.9))
        ],
    }


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes to train on and those held out: every tenth file."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if not files:
        raise SystemExit("this Python comes without its library's sources: no text to train on")
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for at, path in enumerate(files):
        parts[at % 10 == 0].append(path.read_bytes())
    trained, held = (
        torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8) for part in parts
    )
    return trained, held


def batch(source: torch.Tensor, draw: torch.Generator, rows: int) -> torch.Tensor:
    """[rows, LENGTH + 1] bytes from places drawn at random."""
    starts = torch.randint(0, len(source) - LENGTH - 1, (rows, 1), generator=draw)
    return source[starts + torch.arange(LENGTH + 1)].long()


def run(config: Optimizer.Config, seed: int, steps: int) -> dict[str, Any]:
    """The held-out loss after every EVERY steps, and the CPU time of the steps."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    trained, held = text()
    model = gpt(3, 64, 4, vocabulary=BYTES, longest=LENGTH).build()
    optimizer: Any = config.build(model.named_parameters())
    schedule = Schedule.Config(warmup=20, shape="constant").build(steps=steps)
    draw = torch.Generator().manual_seed(seed)
    kept = batch(held, torch.Generator().manual_seed(7), 48)
    losses, spent = [], 0.0
    for step in range(steps):
        began = time.process_time()
        rows = batch(trained, draw, SEQUENCES)
        schedule.apply(optimizer, step)

        def gradients(rows: torch.Tensor = rows) -> None:
            optimizer.zero_grad()
            found = model(rows[:, :-1], rows[:, 1:])
            (found.total / found.count).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        gradients()
        optimizer.step(*([gradients] if getattr(optimizer, "takes_closure", False) else []))
        spent += time.process_time() - began
        if (step + 1) % EVERY == 0:
            with torch.no_grad():
                found = model(kept[:, :-1], kept[:, 1:])
            losses.append(float(found.total / found.count))
    return {"losses": losses, "cpu_s": spent}


def steps_to(losses: list[float], target: float) -> float:
    """The first step at which the loss is at most the target, linear between evaluations."""
    before = float("inf")
    for at, loss in enumerate(losses):
        if loss <= target:
            part = (before - target) / (before - loss) if before < float("inf") else 1.0
            return EVERY * (at + part)
        before = loss
    return float("inf")


def shown(config: Optimizer.Config) -> str:
    told = config.base if isinstance(config, WSAM.Config) else config
    own = {"AdamW": ("betas",), "AGD": ("delta",), "WSAM": ("rho", "gamma")}[
        type(config).part.__name__
    ]
    return ", ".join([f"lr {told.lr:g}", *(f"{name} {getattr(config, name)}" for name in own)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="keeps every loss of every run")
    options = parser.parse_args()
    table = settings()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        tuning = {
            name: [pool.submit(run, config, TUNING_SEED, options.steps) for config in configs]
            for name, configs in table.items()
        }
        best = {}
        for name, runs in tuning.items():
            ends = [made.result()["losses"][-1] for made in runs]
            best[name] = table[name][ends.index(min(ends))]
            told = (
                f"{shown(config)}: {end:.3f}" for config, end in zip(table[name], ends, strict=True)
            )
            print(f"tuned {name}:", "; ".join(told), file=sys.stderr, flush=True)
        final = {
            name: [pool.submit(run, config, seed, options.steps) for seed in SEEDS]
            for name, config in best.items()
        }
        results = {name: [made.result() for made in runs] for name, runs in final.items()}
    report(results, best)
    if options.json:
        options.json.write_text(json.dumps(results) + "\n")


def report(results: dict[str, list[dict[str, Any]]], best: dict[str, Optimizer.Config]) -> None:
    ends = {name: [made["losses"][-1] for made in runs] for name, runs in results.items()}
    target = max(ends["AdamW"])
    print(f"Steps to a held-out loss of {target:.3f} (a byte), seeds {SEEDS}:\n")
    print("| optimizer | best of six settings | steps | mean | AdamW / it | passes a step | end |")
    print("|---|---|---|---|---|---|---|")
    means = {}
    for name, runs in results.items():
        steps = [steps_to(made["losses"], target) for made in runs]
        means[name] = sum(steps) / len(steps)
        reached = ", ".join(f"{step:.0f}" if step < float("inf") else "never" for step in steps)
        print(
            f"| {name} | {shown(best[name])} | {reached} | {means[name]:.0f} | "
            f"{means['AdamW'] / means[name]:.2f} | {2 if name == 'WSAM' else 1} | "
            f"{sum(ends[name]) / len(SEEDS):.3f} |"
        )


if __name__ == "__main__":
    main()
