"""The demo's last table: a job under the real code of PyTorch's own allocators, and under glake.

It needs PyTorch's CUDA build, but no GPU (docs/real.md): the build of this Python, or the one that
`make real` has installed.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import sysconfig
from importlib import util
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from glake.units import size

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "benchmarks" / "real" / "jobs" / "lora_1b.py"
TITLE = "LoRA on 1.3 B parameters, batches of every length"
MEMORY = "12GiB"  # 5 % more than the tensors of the job hold at their peak
ALLOCATORS = {
    "native": "PyTorch's own",
    "expandable": "PyTorch's own, expandable_segments:True",
    "glake": "glake",
}


def cuda_python() -> str | None:
    """A Python whose torch is a CUDA build; None if there is none."""
    found = util.find_spec("torch")
    if found is not None and found.origin is not None:
        version = runpy.run_path(str(Path(found.origin).with_name("version.py")))
        if version.get("cuda") is not None:
            return sys.executable
    beside = ROOT / os.environ.get("REAL_VENV", ".venv-real")
    python = beside / "bin" / "python"
    return str(python) if (beside / ".ready").exists() and python.exists() else None


def show(console: Console) -> None:
    """Prints the table, or a line on how to get it. ClickException if the run fails."""
    python = cuda_python()
    if python is None:
        console.print(
            "The same by PyTorch's own allocator code needs its CUDA build, but no GPU: run "
            "[bold]make real[/] once (555 MB), then this demo shows it.",
            highlight=False,
        )
        return
    runs = _runs(python)
    live = max(each["peak_allocated_bytes"] for each in runs if each["oom"] is None)
    table = Table(
        title=f"{TITLE}, by PyTorch's CUDA build\non a simulated GPU of {MEMORY}: its tensors hold "
        f"{size(live)} at the peak",
        caption="native and expandable are PyTorch's own code here, not models.\n"
        "More such jobs: docs/benchmarks.md",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("allocator", no_wrap=True)
    for heading in (
        "runs?",
        "steps",
        "reserved\nat most",
        "driver\ncalls",
        *(f"time by\n{costs}" for costs in runs[0]["driver_us_by"]),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in runs:
        table.add_row(*_row(each))
    console.print(table)


def _row(run: dict[str, Any]) -> list[str]:
    return [
        ALLOCATORS[run["allocator"]],
        "[green]yes[/]" if run["oom"] is None else "[red]out of memory[/]",
        str(run["steps"]),
        size(run["peak_reserved_bytes"]),
        f"{run['driver_calls']:,}",
        *(f"{us / 1000:,.0f} ms" for us in run["driver_us_by"].values()),
    ]


def _runs(python: str) -> list[dict[str, Any]]:
    command = [python, "-m", "glake.cli", "dry-run", "--json", "--memory", MEMORY, "--outside", "0"]
    command += ["--allocator", ",".join(ALLOCATORS), str(JOB)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        raise click.ClickException(f"the dry run of {JOB.name} failed:\n{done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _environment() -> dict[str, str]:
    """This process's environment. If there is no toolkit, it names CUDA's headers for glake's
    adapter."""
    made = {name: text for name, text in os.environ.items() if name[:6] != "GLAKE_"}
    if (cache := os.environ.get("GLAKE_JIT_DIR")) is not None:
        made["GLAKE_JIT_DIR"] = cache
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
    if wheels.is_dir() and not Path("/usr/local/cuda/include/cuda_runtime_api.h").exists():
        made.setdefault("CUDA_HOME", str(wheels))
    return made
