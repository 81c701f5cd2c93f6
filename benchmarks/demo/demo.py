"""`make demo`: a GPT trains in glake's memory where PyTorch's own policy would run out.

The job is glake's trainer, `torchrun --nproc-per-node 2 -m glake.trainer`, on sequences of every
length: the functions of Python's own standard library.

1. A rehearsal of the job's longest batch shows its peak of live bytes. A rule gives the capacity.
2. The job trains on stock torch, and again with glake at that capacity. Every loss must be the
   same, to the bit, and so must the checkpoint at the end.
3. The trace that the second run recorded is replayed at that capacity under models of PyTorch's
   allocator and under glake. A table and a picture show who fits.
4. Where PyTorch's CUDA build is installed, another job runs by its own allocators, not models.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from compare import HEADROOM, as_json, capacity_for, compare, print_table
from real import show as show_real
from rich.console import Console

from glake import drawing, units
from glake.config import parse_bytes
from glake.trace.replay import load_trace
from glake.trainer.goodput import records

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
REHEARSAL = 2  # steps; the second one has the optimizer's state
DATA = {
    "path": sysconfig.get_path("stdlib"),
    "pattern": "*.py",
    "separator": "\ndef ",
    "arrangement": "padded",
    "evaluation": 0.0,
}


@dataclass(frozen=True)
class Size:
    """A job: layers of the zoo's gpt-tiny, sequences of a step, their longest length in tokens."""

    layers: int
    sequences: int
    length: int


SIZES = {"small": Size(8, 8, 1024), "tiny": Size(2, 4, 512)}


@dataclass(frozen=True)
class Setup:
    """What every training run of this demo shares."""

    steps: int
    seed: int
    size: Size
    out: Path
    gpu: bool

    def lengths(self) -> list[int]:
        """Tokens of each step's sequences, which are padded to the longest."""
        from glake.trainer.data import Data

        config = Data.Config.from_dict(DATA | {"length": self.size.length})
        data = config.build(sequences=self.size.sequences, seed=self.seed)
        return [data.batch(step, 0, 1)[0].tokens.shape[1] for step in range(self.steps)]

    def rehearse(self, longest: int) -> Path:
        """Trains a few steps of the longest sequences. Returns the trace of rank 0's memory."""
        text = self.out / "runs" / "longest"
        shutil.rmtree(text, ignore_errors=True)
        text.mkdir(parents=True)
        for document in range(self.size.sequences):
            (text / f"{document}.txt").write_bytes(b"x" * (longest + 1))
        data = DATA | {"path": str(text), "pattern": "*.txt"}
        found = self.run("rehearsal", data=data, steps=REHEARSAL, trace=True, glake=True)
        return Path(found["trace"])

    def run(
        self,
        title: str,
        data: dict[str, Any] = DATA,
        steps: int | None = None,
        trace: bool = False,
        glake: bool = False,
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Trains in fresh processes, on stock torch or on glake. Returns what rank 0's log says.

        Raises click.ClickException if training fails, which has then said why on stderr.
        """
        folder = self.out / "runs" / title
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={RANKS}", "-m", "glake.trainer", "--config=gpt-tiny"]
        command += [f"--folder={folder}", f"--steps={steps or self.steps}"]
        options = {
            "model.layers": self.size.layers,
            "model.position.longest": self.size.length,
            "sequences": self.size.sequences,
            "seed": self.seed,
            "optimizer.lr": 3e-3,
            "schedule.warmup": 2,
            "deterministic": str(self.gpu).lower(),
            "checkpoint.every": 0,
            "checkpoint.memory": "false",
            "log.trace": str(trace).lower(),
            "data.length": self.size.length,
        } | {f"data.{name}": value for name, value in data.items()}
        command += [f"--set={name}={value}" for name, value in options.items()]
        print(f"--- {title}", file=sys.stderr, flush=True)
        done = subprocess.run(command, env=self._environment(glake, limit), check=False)
        if done.returncode != 0:
            at = "" if limit is None else f" at a capacity of {units.size(limit)}"
            raise click.ClickException(f"{title}: training failed{at}, for the reason above")
        found = result(folder)
        if (found["allocator"] != "torch") != glake:
            raise click.ClickException(f"{title}: {found['allocator']} served torch's memory")
        return found

    def _environment(self, glake: bool, limit: int | None) -> dict[str, str]:
        """This process's environment, with glake's variables of this run and no others."""
        kept = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        if (cache := os.environ.get("GLAKE_JIT_DIR")) is not None:
            kept["GLAKE_JIT_DIR"] = cache
        if glake:
            # With a GPU, glake runs as its basic plug-in, which no hardware has confirmed yet.
            driver = "cuda" if self.gpu else "sim"
            kept |= {"GLAKE_ALLOCATOR": "1", "GLAKE_DRIVER": driver, "GLAKE_STRICT": "1"}
        if limit is not None:
            kept["GLAKE_LIMIT"] = str(limit)
        return kept | {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def result(folder: Path) -> dict[str, Any]:
    """The result of a run: its losses, its checkpoint's checksums, and its memory."""
    steps = [each for each in records(folder / "log.jsonl") if each["event"] == "step"]
    (marker,) = folder.glob("step-*/whole.json")
    last = steps[-1]
    files = json.loads(marker.read_text())["files"]
    return {
        "allocator": last.get("allocator", "torch"),
        "losses": [each["loss"] for each in steps],
        "checkpoint": {name: sums for name, sums in files.items() if name.endswith(".distcp")},
        "peak_physical_bytes": last.get("reserved_bytes"),
        "peak_live_bytes": last.get("allocated_bytes"),
        "trace": str(folder / "memory-0.trace"),
    }


def device_line() -> tuple[str, bool]:
    """The demo's first line, and whether there is a GPU."""
    import torch

    if not torch.cuda.is_available():
        return "GPU: simulated (no CUDA device found)", False
    names = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    return f"GPU: {', '.join(names)}", True


def difference(stock: dict[str, Any], glake: dict[str, Any]) -> str | None:
    """How the two runs' results differ, in words; None if they are the same to the bit."""
    if len(stock["losses"]) != len(glake["losses"]):
        return f"{len(stock['losses'])} losses against {len(glake['losses'])}"
    for step, (one, other) in enumerate(zip(stock["losses"], glake["losses"], strict=True)):
        if one.hex() != other.hex():
            return f"the loss of step {step} is {one!r} on stock torch, {other!r} on glake"
    if stock["checkpoint"] != glake["checkpoint"]:
        return "the losses are the same, the checkpoints at the end are not"
    return None


def _capacity(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(f'{text!r} is {error}: write it as "400MiB"') from error


@click.command()
@click.option("--steps", default=16, show_default=True, type=click.IntRange(3))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option(
    "--out", default=ROOT / "build" / "demo", help="Where results go.  [default: build/demo]",
    type=click.Path(file_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--capacity", callback=_capacity,
    help=f'Memory of each device, such as "400MiB".  [default: {HEADROOM} x the peak live bytes]',
)  # fmt: skip
@click.option("--size", default="small", show_default=True, type=click.Choice(list(SIZES)))
def main(steps: int, seed: int, out: Path, capacity: int | None, size: str) -> None:
    """Train a GPT on stock torch and on glake, and see at which capacity each policy fits."""
    console = Console()
    if not console.is_terminal:
        console.width = 110
    line, gpu = device_line()
    console.print(line, highlight=False)
    if gpu:
        console.print("glake serves it through its basic plug-in, not seen on hardware before.")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    setup = Setup(steps, seed, SIZES[size], out, gpu)
    trace = out / "job.trace"
    lengths = setup.lengths()
    if capacity is None:
        live = load_trace(setup.rehearse(max(lengths))).peak_live_bytes
        capacity = capacity_for(live)
        console.print(
            f"Capacity: {units.size(capacity)} each, {HEADROOM} x the {units.size(live)} live at "
            "the peak of a rehearsal of the longest batch."
        )
    stock = setup.run("stock")
    glake = setup.run("glake", trace=True, glake=True, limit=capacity)
    shutil.copyfile(glake["trace"], trace)
    found = difference(stock, glake)
    losses = {"identical": found is None, "lengths": lengths, "stock": stock, "glake": glake}
    (out / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
    _say_training(console, losses, capacity)
    outcomes = compare(trace, capacity)
    print_table(outcomes, console)
    (out / "policies.json").write_text(json.dumps(as_json(outcomes), indent=1) + "\n")
    _draw(outcomes, trace, out / "memory.png", setup)
    console.print("Picture, losses, figures and trace:")
    for name in ("memory.png", "losses.json", "policies.json", "job.trace"):
        console.print(f"  {out / name}", highlight=False, soft_wrap=True)
    if found is not None:
        raise click.ClickException(f"glake changed the training: {found}")
    show_real(console)


def _draw(outcomes: list[Any], trace: Path, path: Path, setup: Setup) -> None:
    # matplotlib takes a second to load, and the first line should not wait for it.
    drawing.load()
    from picture import draw

    device = "a GPU" if setup.gpu else "simulated GPU"
    draw(
        outcomes,
        trace,
        path,
        f"glake's trainer: {setup.size.layers} layers, {setup.steps} steps, one of {RANKS} ranks, "
        f"{device}. One trace for all; native and expandable are models.",
    )


def _say_training(console: Console, runs: dict[str, Any], capacity: int) -> None:
    stock, glake, lengths = runs["stock"], runs["glake"], runs["lengths"]
    first, last = glake["losses"][0], glake["losses"][-1]
    same = difference(stock, glake)
    console.print(
        f"Trained {len(lengths)} steps, {min(lengths)} to {max(lengths)} tokens a sequence; loss "
        f"{first:.3f} -> {last:.3f}."
    )
    if same is None:
        console.print(
            f"[green]All {len(lengths)} losses and the checkpoint at the end are bit-identical on "
            "stock torch and on glake.[/]"
        )
    else:
        console.print(f"[red]Not identical: {same}[/]")
    console.print(
        f"glake trained in {units.size(glake['peak_physical_bytes'])} of physical memory; the "
        f"limit was {units.size(capacity)}."
    )


if __name__ == "__main__":
    main()
