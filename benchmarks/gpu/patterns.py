"""The patterns of benchmarks/allocator through torch on a GPU, allocators side by side in one run.

    python benchmarks/gpu/patterns.py [--driver cuda|sim] [--rounds N] [--memory GIB] [--out DIR]

The allocators are torch native, expandable segments, cudaMallocAsync and glake. RMM's pool under
torch and CuPy's own pool are added if they are installed. Each has a process (the workers of
side_by_side.py). All are alive at once and take turns. --driver sim tries the script without a GPU,
in torch's CPU memory: native is then torch's CPU allocator, glake the emulation, and only their
host times mean something.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from side_by_side import GIB, REAL, SIM, Process, WorkerError

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "benchmarks" / "allocator"), str(ROOT / "tools")]

from common import Metric, Pattern, Row, command, present  # noqa: E402
from gpulane.preflight import no_gpu  # noqa: E402
from pattern_jobs import PATTERNS  # noqa: E402

PATTERN = Pattern(
    program="torch_patterns",
    title="Allocation patterns: nanoseconds a call from Python, pairs a second from C++",
    metrics=(
        Metric("alloc_p50_ns", "alloc p50", "less"),
        Metric("alloc_p99_ns", "alloc p99", "less"),
        Metric("free_p50_ns", "free p50", "less"),
        Metric("held_per_live", "held / live", "less", 3),
        Metric("pairs_per_s", "pairs /s", "more"),
    ),
    note="A call from Python makes a tensor too, the same for all but cupy. No figure: out of "
    "memory, or none to be had.",
    subjects={
        "native": "PyTorch's default CUDA allocator",
        "expandable": "PyTorch's, with expandable_segments:True",
        "async": "cudaMallocAsync, through PyTorch",
        "glake": "in place of PyTorch's CUDA allocator",
        "rmm": "a pool of RMM's, under PyTorch; it gives nothing back, so that held is not known",
        "cupy": "CuPy's default pool, by itself: raw memory",
    },
)
SIMULATED = {
    "native": "torch's CPU allocator, which caches nothing: not the one it has for CUDA",
    "glake": "the emulation in place of it, on the simulated driver",
}
OTHERS = ("rmm", "cupy")
MEMORY_LIMIT = 1.5  # for each process, in budgets


def missing(driver: str) -> str | None:
    """What keeps this script from running, in one sentence; None if nothing does."""
    if importlib.util.find_spec("torch") is None:
        return "patterns.py needs torch, and it is not installed."
    if driver == "sim":
        return None
    if absent := no_gpu(who="patterns.py"):
        return absent
    import torch

    if torch.version.cuda is None:
        return f"patterns.py needs a CUDA build of torch; this one is {torch.__version__}."
    return None


class Run:
    """The workers and their rows. A worker that fails is named, and has no more part."""

    def __init__(self, driver: str, budget: int, threads: int, console: Console) -> None:
        self.plan = SIM if driver == "sim" else REAL
        self.budget, self.threads, self.console = budget, threads, console
        names = ["glake", "native"]
        if driver != "sim":
            names += ["expandable", "async"]
            names += [name for name in OTHERS if importlib.util.find_spec(name) is not None]
        self.rows: dict[tuple[str, str], Row] = {}
        self.workers: dict[str, Process] = {}
        for name in names:
            self.workers[name] = Process(name, driver, self.plan, {} if name in OTHERS else None)
        for name in list(self.workers):
            limit = int(MEMORY_LIMIT * budget)
            kind = name if name in OTHERS else "torch"
            self.ask(name, "hello")
            self.ask(name, "allocator", kind=kind, limit=limit)

    def ask(self, name: str, do: str, /, **order: Any) -> dict[str, Any] | None:
        """The worker's answer to an order, or its first answer ("hello"). None if the worker is
        lost."""
        worker = self.workers.get(name)
        if worker is None:
            return None
        try:
            return worker.answer(120) if do == "hello" else worker.ask(120, do, **order)
        except WorkerError as error:
            self.console.print(f"lost {error}")
            self.workers.pop(name).end()
            return None

    def round(self, first: int) -> None:
        """Plays every pattern once under every allocator, beginning with the `first` one."""
        names = list(self.workers)
        names = names[first % len(names) :] + names[: first % len(names)] if names else []
        for pattern in PATTERNS:
            for name in names:
                told = self.ask(name, "pattern", which=pattern, budget=self.budget)
                self.keep(pattern, name, told)
        for threads in (1, self.threads):
            for name in names:
                if name != "cupy":  # which has no C++ interface
                    told = self.ask(name, "mixed", threads=threads, seconds=0.3)
                    self.keep(f"C++, mixed, threads: {threads}", name, told)

    def keep(self, case: str, name: str, told: dict[str, Any] | None) -> None:
        told = told or {}
        if told.get("oom"):
            self.console.print(f"{case}, {name}: {told['oom']}")
        new: Row = {"pattern": PATTERN.program, "case": case, "subject": name, "rounds": {}}
        row = self.rows.setdefault((case, name), new)
        for metric in PATTERN.metrics:
            value = None if told.get("oom") else told.get(metric.key)
            row["rounds"].setdefault(metric.key, []).append(value)

    def end(self) -> list[Row]:
        for worker in self.workers.values():
            worker.end()
        return list(self.rows.values())


def work(
    driver: str, rounds: int, threads: int, memory: float, as_json: bool, out: Path | None
) -> None:
    if lack := missing(driver):
        raise click.ClickException(lack)
    console = Console(stderr=True)
    budget = int(min(memory, 0.25) * GIB if driver == "sim" else memory * GIB)
    run = Run(driver, budget, threads, console)
    for index in range(rounds):
        run.round(index)
    rows = run.end()
    if not rows:
        raise click.ClickException("no allocator gave a figure; what was lost is said above.")
    shown = replace(PATTERN, subjects=SIMULATED) if driver == "sim" else PATTERN
    present(shown, rows, as_json, out)


def option(name: str, kind: click.ParamType, default: Any, text: str = "") -> click.Option:
    return click.Option([name], type=kind, default=default, show_default=True, help=text)


main = command(
    work,
    "Plays allocation patterns under every allocator there is.",
    option("--driver", click.Choice(["cuda", "sim"]), "cuda"),
    option("--rounds", click.IntRange(1), 5),
    option("--threads", click.IntRange(2, 64), 2),
    option("--memory", click.FloatRange(0, min_open=True), 4.0,
           "GiB that a pattern has live at most."),
    files="a JSON file and a PNG",
)  # fmt: skip

if __name__ == "__main__":
    main()
