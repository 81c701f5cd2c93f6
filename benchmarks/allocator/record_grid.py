"""Records a grid of real jobs without running them, for traces that test an allocator's policy.

    python benchmarks/allocator/record_grid.py OUT_DIR [--only PATTERN] [--steps N] [--list]

The models and strategies of the GMLake paper (Guo et al. 2024: OPT, GPT-2, GLM-10B, GPT-NeoX-20B
and Vicuna; N: none, R: recomputation, L: LoRA, O: offload), and mixtures of experts, RLHF, serving
and FSDP2. Each job is a ready plan, so `glake plan` with the arguments below records the same. A
trace that exists is kept. One job runs at a time. A step takes seconds to minutes, and less than
4 GB of host memory.

    for trace in OUT_DIR/*.trace.gz; do python benchmarks/allocator/targets.py $trace; done
"""

from __future__ import annotations

import fnmatch
import os
import shlex
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from glake.errors import GlakeError
from glake.trace.record import record

CHAT = "--seq lognormal:1000,0.4,128,2048"
SHORT = "--seq lognormal:500,0.4,64,1024"
LORA = "--lora 16"

# name -> the arguments of `glake plan`
JOBS = {
    "gpt2-N-w1": f"gpt2 {SHORT} --batch 16",
    "gpt2-xl-R-w1": f"gpt2-xl {SHORT} --batch 8 --recompute yes",
    "gpt2-xl-O-w1": f"gpt2-xl {SHORT} --batch 4 --offload optimizer --precision bf16",
    "gpt2-xl-N-ddp-w2": f"gpt2-xl {SHORT} --batch 4 --world 2 --strategy ddp",
    "opt-1.3b-N-w1": f"opt-1.3b {CHAT} --batch 4",
    "opt-1.3b-L-w1": f"opt-1.3b {CHAT} --batch 8 {LORA}",
    "opt-1.3b-LRO-w1": f"opt-1.3b {CHAT} --batch 24 --strategy zero3 {LORA} --recompute yes "
    "--offload optimizer --eager-attention yes",
    "opt-1.3b-RO-w4": f"opt-1.3b {CHAT} --batch 16 --world 4 --strategy zero3 --recompute yes "
    "--offload optimizer",
    "opt-13b-LR-w4": f"opt-13b {CHAT} --batch 16 --world 4 --strategy zero3 {LORA} "
    "--recompute yes --eager-attention yes",
    "opt-13b-RO-w8": f"opt-13b {CHAT} --batch 8 --world 8 --strategy zero3 --recompute yes "
    "--offload optimizer",
    "opt-13b-R-fsdp2-w16": f"opt-13b {CHAT} --batch 8 --world 16 --recompute yes",
    "glm-10b-LR-w2": f"glm-10b-like {SHORT} --batch 16 --world 2 --strategy zero3 {LORA} "
    "--recompute yes",
    "glm-10b-LRO-w1": f"glm-10b-like {SHORT} --batch 16 --strategy zero3 {LORA} --recompute yes "
    "--offload params",
    "glm-10b-R-w16": f"glm-10b-like {SHORT} --batch 16 --world 16 --strategy zero3 --recompute yes",
    "neox-20b-LR-w8": f"gpt-neox-20b {CHAT} --batch 8 --world 8 --strategy zero3 {LORA} "
    "--recompute yes",
    "neox-20b-LRO-w2": f"gpt-neox-20b {CHAT} --batch 8 --world 2 --strategy zero3 {LORA} "
    "--recompute yes --offload params",
    "neox-20b-R-fsdp2-w16": f"gpt-neox-20b {CHAT} --batch 4 --world 16 --recompute yes",
    "vicuna-13b-LR-w2": f"vicuna-13b {CHAT} --batch 8 --world 2 --strategy zero3 {LORA} "
    "--recompute yes",
    "vicuna-13b-R-fsdp2-w8": f"vicuna-13b {CHAT} --batch 8 --world 8 --recompute yes",
    "llama3-8b-fsdp2-w8": "llama3-8b --seq 8192 --batch 1 --world 8",
    "llama3-8b-LR-fsdp2-w8": "llama3-8b --seq lognormal:4000,0.4,256,8192 --world 8 "
    f"{LORA} --recompute yes",
    "llama3-8b-accumulate-w8": "llama3-8b --seq uniform:512-4096 --batch 1 --accumulate 4 "
    "--world 8 --recompute yes --reshard no",
    "mixtral-skewed-LR-w8": f"mixtral-8x7b {CHAT} --batch 4 --world 8 {LORA} --recompute yes "
    "--routing skewed",
    "moe-balanced-w4": "custom --arch mixtral --layers 16 --hidden 2048 --heads 16 --ffn 4096 "
    f"--vocab 32000 {CHAT} --batch 4 --world 4 --routing balanced",
    "rlhf-opt-1.3b": "opt-1.3b --workload rlhf --critic opt-350m --seq uniform:64-512 "
    "--output uniform:16-48 --batch 8 --recompute yes",
    "rlhf-opt-6.7b-LR": "opt-6.7b --workload rlhf --critic opt-350m --seq uniform:64-512 "
    f"--output uniform:16-48 --batch 8 {LORA} --recompute yes",
    "serving-llama3-8b": "llama3-8b --workload serving --seq lognormal:800,0.8,32,4096 --batch 24 "
    "--output lognormal:40,0.8,4,256 --arrivals 0.7 --ticks 8",
    "serving-qwen2.5-0.5b": "qwen2.5-0.5b --workload serving --seq lognormal:800,0.8,32,8192 "
    "--batch 48 --output lognormal:40,0.8,4,256 --arrivals 1.5 --ticks 8",
}

_OF_PLAN = {"world": int, "steps": int, "seed": int, "attention": str, "scratch": str}


def request(arguments: str, steps: int) -> tuple[str, dict[str, object]]:
    """The target and keywords for ``record`` that mean the same as arguments of ``glake plan``."""
    target, *words = shlex.split(arguments)
    given = dict(zip(words[::2], words[1::2], strict=True))
    known: dict[str, object] = {"steps": steps}
    options = {}
    for flag, value in given.items():
        name = flag.removeprefix("--")
        if name in _OF_PLAN:
            known[name] = _OF_PLAN[name](value)
        else:
            options[name] = value
    return target, {**known, "options": options}


def record_one(name: str, path: Path, steps: int, progress: Progress) -> str:
    """Records one job and returns a line about it. The file appears whole or not at all."""
    started = time.monotonic()
    task = progress.add_task(f"{name}: starting torch", total=steps + 1)

    def told(done: int, of: int, doing: str) -> None:
        progress.update(task, completed=done, total=of, description=f"{name}: {doing}")

    partial = path.with_name(f"partial-{os.getpid()}-{path.name}")
    try:
        target, keywords = request(JOBS[name], steps)
        facts = record(target, partial, progress=told, **keywords)
        partial.rename(path)
    except GlakeError as error:
        return f"failed: {error}"
    finally:
        partial.unlink(missing_ok=True)
        progress.remove_task(task)
    return (
        f"{facts['peak_live_bytes'] / 2**30:.2f} GiB at the peak, {facts['allocations']:,} "
        f"allocations, {time.monotonic() - started:.0f} s"
    )


@click.command()
@click.argument("out_dir", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option("--only", default="*", show_default=True, help="Names to record, with * and ?.")
@click.option("--steps", default=12, show_default=True, type=click.IntRange(1))
@click.option("--list", "as_list", is_flag=True, help="Print the jobs and their arguments.")
def main(out_dir: Path | None, only: str, steps: int, as_list: bool) -> None:
    """Record the jobs into OUT_DIR as NAME.trace.gz."""
    console = Console()
    names = [name for name in JOBS if fnmatch.fnmatch(name, only)]
    if not names:
        raise click.BadParameter(f"{only!r} matches none of {', '.join(JOBS)}", param_hint="--only")
    if as_list:
        table = Table("job", "glake plan")
        for name in names:
            table.add_row(name, JOBS[name])
        console.print(table)
        return
    if out_dir is None:
        raise click.UsageError("name the directory to record into")
    out_dir.mkdir(parents=True, exist_ok=True)
    failed = 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for name in names:
            path = out_dir / f"{name}.trace.gz"
            if path.exists():
                progress.console.print(f"{name}: exists")
                continue
            said = record_one(name, path, steps, progress)
            failed += said.startswith("failed")
            progress.console.print(f"{name}: {said}", markup=False)
    if failed:
        raise click.ClickException(f"{failed} of {len(names)} jobs failed")


if __name__ == "__main__":
    main()
