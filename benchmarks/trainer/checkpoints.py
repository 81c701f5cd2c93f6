"""For how long a checkpoint stops the step: torch's synchronous and asynchronous DCP beside
glake's.

All four ways save the same sharded model in one process, in turn, with steps between. Each row says
for how long the step stood still, and after how long the state was safe.

    python benchmarks/trainer/checkpoints.py --out benchmarks/trainer/results/checkpoints.json
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rich.console import Console
from rich.table import Table

from glake.trainer import ranks
from glake.trainer.checkpoint import Checkpoint
from glake.trainer.fsdp import Sharding
from glake.trainer.models import sizes
from glake.trainer.optimizers import AdamW

NAMES = {
    "dcp.save": "torch, synchronous",
    "dcp.async_save": "torch, asynchronous",
    "disk": "glake, to disk",
    "memory": "glake, to memory",
}


class Trial:
    """A model that steps, and four ways to save it."""

    def __init__(self, name: str, layers: int | None, folder: Path, here: ranks.Ranks) -> None:
        config = sizes.model(name)
        if layers is not None:
            config.set("layers", layers)
        with torch.device("meta"):
            model = config.build()
        self.sharded = Sharding.Config().build(model, device=here.device)
        self.optimizer = AdamW.Config().build(self.sharded.named_parameters())
        self.folder, self.here, self.number = folder, here, 0
        self.vocabulary = config.vocabulary
        self.ways = {
            "disk": self._made("disk", every=1, memory=False),
            "memory": self._made("memory", every=0, memory=True),
        }
        for each in self.ways.values():
            each.resume(self.sharded.state, self.optimizer)

    def _made(self, name: str, **fields: Any) -> Checkpoint:
        config = Checkpoint.Config(folder=str(self.folder / name), keep=1, **fields)
        made: Checkpoint = config.build(
            group=self.here.checkpoints, say=print, text="", signature={}
        )
        return made

    def passes(self) -> None:
        """Runs forward and backward, during which a save may go on."""
        tokens = torch.randint(0, self.vocabulary, (4, 65), device=self.here.device)
        self.sharded(tokens[:, :-1], tokens[:, 1:]).total.backward()

    def update(self) -> None:
        """Takes the optimizer's step."""
        self.sharded.clip_gradients(1.0, scale=1 / 256)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.number += 1

    def save(self, way: str) -> tuple[float, float]:
        """Saves once, and goes on. Returns the seconds for which the step stood still, and the
        seconds until the state was safe."""
        self.passes()
        self.update()
        # torch's own ways take tensors as arguments; the time to make these is not counted.
        state = self.sharded.state.tensors(self.optimizer) if way.startswith("dcp.") else {}
        began = time.perf_counter()
        safe: list[float] = []
        settle, finish = self._start(
            way, state, lambda *_: safe.append(time.perf_counter() - began)
        )
        stall = time.perf_counter() - began
        self.passes()
        before = time.perf_counter()
        settle()  # the parameters are about to change
        stall += time.perf_counter() - before
        self.update()
        finish()
        while not safe:  # another thread notes it
            time.sleep(0.0005)
        return stall, safe[0]

    def _start(
        self, way: str, state: dict[str, Any], safe: Callable[..., None]
    ) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Begins a save. Returns what to call before parameters change, and what waits for the
        end."""
        path = self.folder / f"{way}-{self.number}"

        def nothing() -> None:
            pass

        if way == "dcp.save":
            dcp.save(state, checkpoint_id=path)
            safe()
            return nothing, nothing
        if way == "dcp.async_save":
            group = self.here.checkpoints
            future = dcp.async_save(state, checkpoint_id=path, process_group=group)
            future.add_done_callback(safe)
            return nothing, future.result
        checkpoint = self.ways[way]
        checkpoint.after_step(self.number, {})
        if way == "memory":
            checkpoint._copied[-1].add_done_callback(safe)
            return checkpoint.settle, nothing
        assert checkpoint._written is not None
        checkpoint._written.add_done_callback(safe)
        return checkpoint.settle, checkpoint._await_written


def measured(name: str, layers: int | None, rounds: int) -> dict[str, Any]:
    """Measures each way `rounds` times, in turn."""
    with ranks.joined(600.0) as here, tempfile.TemporaryDirectory() as scratch:
        folder = [scratch]
        dist.broadcast_object_list(folder, group=here.host, group_src=0)
        trial = Trial(name, layers, Path(folder[0]), here)
        measures: dict[str, list[tuple[float, float]]] = {way: [] for way in NAMES}
        for turn in range(rounds + 1):
            for way in NAMES:
                times = trial.save(way)
                if turn:  # the first of each is a warm-up
                    measures[way].append(times)
        own = trial.ways["memory"]._memory
        assert own is not None and own.files[0].layout is not None
        size = own.files[0].layout.bytes
        here.total(0)
        own.remove()
        for each in trial.ways.values():
            each.close()
        rows = {
            way: {
                "stall_ms": 1e3 * statistics.median(stall for stall, _ in times),
                "worst_ms": 1e3 * max(stall for stall, _ in times),
                "safe_ms": 1e3 * statistics.median(safe for _, safe in times),
            }
            for way, times in measures.items()
        }
        device = str(here.device)
        found = {"bytes_per_rank": size, "ranks": here.count, "device": device, "rows": rows}
        return found | {"load_average": os.getloadavg()[1], "cores": os.cpu_count()}


def show(found: dict[str, Any], console: Console) -> None:
    """Prints the table."""
    size = found["bytes_per_rank"] / 2**20
    table = Table(title=f"{size:,.0f} MiB of state a rank, {found['ranks']} ranks")
    for heading in ("checkpoint", "stalls the step (ms)", "at worst (ms)", "safe after (ms)"):
        table.add_column(heading, justify="left" if heading == "checkpoint" else "right")
    for way, row in found["rows"].items():
        table.add_row(NAMES[way], *(f"{row[key]:,.0f}" for key in row))
    console.print(table)


@click.command()
@click.option("--config", default="gpt-nano", show_default=True, help="A model of the zoo.")
@click.option("--layers", type=int, help="Other than the model's own.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Results, JSON.")
def main(config: str, layers: int | None, rounds: int, out: Path | None) -> None:
    """Measure what checkpoints cost; under torchrun with several ranks."""
    found = measured(config, layers, rounds)
    if found is not None:
        show(found, Console(width=100))
        if out is not None:
            out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
