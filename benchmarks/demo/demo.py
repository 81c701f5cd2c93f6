"""`make demo`: a GPT trains in glake's memory where PyTorch's own policy would run out.

1. A rehearsal of the job's longest batch tells its peak of live bytes, and by a rule the capacity.
2. The job trains on stock torch, and again with glake at that capacity; every loss must be the
   same, to the bit, and so must the final weights.
3. What the job allocated, recorded in that second run, is replayed at that capacity under models
   of PyTorch's allocator and under glake: who fits, in a table and a picture.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from compare import HEADROOM, as_json, capacity_for, compare, print_table, size_text
from rich.console import Console

from glake.config import parse_bytes
from glake.trace.replay import load_trace

ROOT = Path(__file__).resolve().parents[2]
TRAIN = Path(__file__).with_name("train.py")


@dataclass(frozen=True)
class Setup:
    """What every training run of this demo shares."""

    steps: int
    seed: int
    size: str
    out: Path
    gpu: bool

    def run(
        self, title: str, *flags: str, glake: bool = False, limit: int | None = None
    ) -> dict[str, Any]:
        """Trains in fresh processes, on stock torch or on glake; the results rank 0 wrote.

        Raises click.ClickException if training fails; its own words are on stderr by then.
        """
        result = self.out / "runs" / f"{title}.json"
        result.parent.mkdir(parents=True, exist_ok=True)
        result.unlink(missing_ok=True)
        command = [sys.executable, str(TRAIN), "--steps", str(self.steps), "--seed", str(self.seed)]
        command += ["--size", self.size, "--title", f"{title:>9}", "--out", str(result), *flags]
        done = subprocess.run(command, env=self._environment(glake, limit), check=False)
        if done.returncode != 0:
            at = "" if limit is None else f" at a capacity of {size_text(limit)}"
            raise click.ClickException(f"{title}: training failed{at}, for the reason above")
        found: dict[str, Any] = json.loads(result.read_text())
        if (found["allocator"] != "torch") != glake:
            raise click.ClickException(f"{title}: {found['allocator']} served torch's memory")
        return found

    def _environment(self, glake: bool, limit: int | None) -> dict[str, str]:
        """This process's own, with glake as this run has it and in no other way."""
        kept = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        if (cache := os.environ.get("GLAKE_JIT_DIR")) is not None:
            kept["GLAKE_JIT_DIR"] = cache
        if glake:
            # With a GPU, glake is its basic plug-in: not seen on hardware yet.
            driver = "cuda" if self.gpu else "sim"
            kept |= {"GLAKE_ALLOCATOR": "1", "GLAKE_DRIVER": driver, "GLAKE_STRICT": "1"}
        if limit is not None:
            kept["GLAKE_LIMIT"] = str(limit)
        return kept


def device_line() -> tuple[str, bool]:
    """The demo's first line, and whether there is a GPU."""
    import torch

    if not torch.cuda.is_available():
        return "GPU: simulated (no CUDA device found)", False
    names = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    return f"GPU: {', '.join(names)}", True


def difference(stock: dict[str, Any], glake: dict[str, Any]) -> str | None:
    """What sets the two runs' results apart, in words; None if they are the same to the bit."""
    if len(stock["losses"]) != len(glake["losses"]):
        return f"{len(stock['losses'])} losses against {len(glake['losses'])}"
    for step, (one, other) in enumerate(zip(stock["losses"], glake["losses"], strict=True)):
        if one.hex() != other.hex():
            return f"the loss of step {step} is {one!r} on stock torch, {other!r} on glake"
    if stock["weights_sha256"] != glake["weights_sha256"]:
        return "the losses are the same, the final weights are not"
    return None


def _capacity(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(f'{text!r} is {error}: write it as "400MiB"') from error


@click.command()
@click.option("--steps", default=30, show_default=True, type=click.IntRange(3))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option(
    "--out", default=ROOT / "build" / "demo", help="Where results go.  [default: build/demo]",
    type=click.Path(file_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--capacity", callback=_capacity,
    help=f'Memory of each device, such as "400MiB".  [default: {HEADROOM} x the peak live bytes]',
)  # fmt: skip
@click.option("--size", default="small", show_default=True, type=click.Choice(["small", "tiny"]))
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
    setup = Setup(steps, seed, size, out, gpu)
    trace = out / "job.trace"
    if capacity is None:
        rehearsed = out / "runs" / "rehearsal.trace"
        rehearsed.parent.mkdir(exist_ok=True)
        setup.run("rehearsal", "--rehearse", "--trace", str(rehearsed), glake=True)
        live = load_trace(rehearsed).peak_live_bytes
        capacity = capacity_for(live)
        console.print(
            f"Capacity: {size_text(capacity)} each, {HEADROOM} x the {size_text(live)} live at the "
            "peak of a rehearsal of the longest batch."
        )
    stock = setup.run("stock")
    glake = setup.run("glake", "--trace", str(trace), glake=True, limit=capacity)
    found = difference(stock, glake)
    _write_losses(out / "losses.json", stock, glake, found is None)
    _say_training(console, stock, glake, capacity)
    outcomes = compare(trace, capacity)
    print_table(outcomes, console)
    (out / "policies.json").write_text(json.dumps(as_json(outcomes), indent=1) + "\n")
    _draw(outcomes, trace, out / "memory.png", setup, glake)
    console.print("Picture, losses, figures and trace:")
    for name in ("memory.png", "losses.json", "policies.json", "job.trace"):
        console.print(f"  {out / name}", highlight=False, soft_wrap=True)
    if found is not None:
        raise click.ClickException(f"glake changed the training: {found}")


def _draw(
    outcomes: list[Any], trace: Path, path: Path, setup: Setup, result: dict[str, Any]
) -> None:
    # Imported here: matplotlib takes a second, and the first line should not wait for it.
    from picture import draw

    device = "a GPU" if setup.gpu else "simulated GPU"
    draw(
        outcomes,
        trace,
        path,
        f"{result['parameters'] / 1e6:.1f} M parameters, {setup.steps} steps, one of two "
        f"data-parallel processes, {device}. One trace for all; native and expandable are models.",
    )


def _write_losses(
    path: Path, stock: dict[str, Any], glake: dict[str, Any], identical: bool
) -> None:
    path.write_text(json.dumps({"identical": identical, "stock": stock, "glake": glake}, indent=1))


def _say_training(
    console: Console, stock: dict[str, Any], glake: dict[str, Any], capacity: int
) -> None:
    first, last = glake["losses"][0], glake["losses"][-1]
    tokens = stock["tokens_per_sequence"]
    same = difference(stock, glake)
    console.print(
        f"Trained {len(tokens)} steps, {min(tokens)} to {max(tokens)} tokens a sequence; loss "
        f"{first:.3f} -> {last:.3f}."
    )
    if same is None:
        console.print(
            f"[green]All {len(tokens)} losses and the final weights are bit-identical on stock "
            "torch and on glake.[/]"
        )
    else:
        console.print(f"[red]Not identical: {same}[/]")
    console.print(
        f"glake trained in {size_text(glake['peak_physical_bytes'])} of physical memory; the limit "
        f"was {size_text(capacity)}."
    )
    if (share := glake["covered_share"]) is not None:
        console.print(f"Covered: at the longest batch glake held {share:.2%} of live tensor bytes.")


if __name__ == "__main__":
    main()
