"""The same training job under torch's allocators and glake's, in one run, one process each.

    python benchmarks/gpu/side_by_side.py [--driver cuda|sim] [--seconds S] [--out FILE]

native, expandable (expandable_segments:True), async (cudaMallocAsync) and glake train a GPT whose
sequence lengths vary. All processes live at once and take turns, so that slow changes of the
machine's speed meet all alike. "native again" is a second native process. Its distance from the
first is the noise. There are four parts: latency (allocation and free), ample (no memory limit),
largest (the largest batch at one limit), tight (3 % above the peak live bytes). --driver sim tries
the script without a GPU, on tiny sizes, and its figures mean nothing.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

HERE = Path(__file__).resolve().parent
HEADROOM = 1.03
PROBES = (8, 24)  # sequences
MIB, GIB = 2**20, 2**30
CONTROL = "native again"
# The variables of each process. The rest of the environment is the same for all.
ALLOCATORS: dict[str, dict[str, str]] = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1"},
    CONTROL: {},
}


class WorkerError(RuntimeError):
    """A worker died, refused an order or took too long. The text says which."""


@dataclass(frozen=True)
class Plan:
    """Sizes of one run."""

    device: str
    shape: str
    longest: int
    live_bytes: int  # peak live bytes to aim at; 0: take `batch`
    batch: int
    warm_up: int
    steps: int  # in a round
    rounds: int
    latency_sizes: tuple[int, ...]
    latency_times: int


SIM = Plan("cpu", "tiny", 64, 0, 2, 1, 2, 2, (512, 2 * MIB), 10)
REAL = Plan(
    device="cuda",
    shape="real",
    longest=512,
    live_bytes=8 * GIB,
    batch=0,
    warm_up=4,
    steps=12,
    rounds=5,
    latency_sizes=(512, 64 * 1024, MIB, 2 * MIB, 20 * MIB, 256 * MIB),
    latency_times=1000,
)


class Process:
    """A worker and its first answer."""

    def __init__(
        self, name: str, driver: str, plan: Plan, variables: dict[str, str] | None = None
    ) -> None:
        self.name = name  # `variables` is for a worker that is not in ALLOCATORS
        drop = ("GLAKE_", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
        if "GLAKE_JIT_DIR" in os.environ:
            kept["GLAKE_JIT_DIR"] = os.environ["GLAKE_JIT_DIR"]
        kept |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1"}
        kept |= ALLOCATORS[name] if variables is None else variables
        if "GLAKE_ALLOCATOR" in kept:
            kept |= {"GLAKE_DRIVER": driver}
            kept |= {"GLAKE_SIM_MEMORY": "1GiB"} if driver == "sim" else {}
        if plan.device == "cpu":
            kept["OMP_NUM_THREADS"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), plan.device, plan.shape],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            env=kept,
        )
        self._unread = b""

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next answer. WorkerError if none comes within `seconds`, or for a refusal."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._unread.partition(b"\n")
                if newline:
                    self._unread = rest
                    if line.startswith(b"{"):
                        break
                    continue
                left = deadline - time.monotonic()
                if left <= 0 or not waiting.select(left):
                    raise WorkerError(f"{self.name}: no answer within {seconds:.0f} s")
                read = os.read(self.process.stdout.fileno(), 1 << 16)
                if not read:
                    raise WorkerError(f"{self.name}: ended with status {self.process.wait()}")
                self._unread += read
        told: dict[str, Any] = json.loads(line)
        if not told.pop("ok"):
            raise WorkerError(f"{self.name}: {told['error']}")
        return told

    def ask(self, seconds: float, do: str, /, **order: Any) -> dict[str, Any]:
        """Gives the worker one order and returns its answer. WorkerError as answer()."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"{self.name}: ended with status {self.process.wait()}") from None
        return self.answer(seconds)

    def end(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(10)
        except (subprocess.TimeoutExpired, OSError):
            self.process.kill()
            self.process.wait()


class Run:
    """Runs the parts in turn. A worker that fails has no part in the rest, and is named in
    `lost`."""

    def __init__(self, plan: Plan, driver: str, seconds: float, say: Callable[[str], None]) -> None:
        self.plan, self.say = plan, say
        self.deadline = time.monotonic() + seconds
        self.lost: dict[str, str] = {}
        # Without a GPU the other allocators are the same CPU allocator.
        names = ALLOCATORS if plan.device == "cuda" else ("native", "glake", CONTROL)
        self.workers = {name: Process(name, driver, plan) for name in names}
        self.found: dict[str, Any] = {"workers": {}}
        for name in list(self.workers):
            if told := self._try(name, lambda name=name: self.workers[name].answer(120)):
                self.found["workers"][name] = told
        random.seed(5)
        least = plan.longest // 4
        self.lengths = [random.randint(least, plan.longest) for _ in range(plan.steps)]
        self.lengths[plan.steps // 2] = plan.longest

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def _try(self, name: str, what: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return what()
        except WorkerError as error:
            self.lost[name] = str(error)
            self.say(f"lost {error}")
            self.workers.pop(name).end()
            return None

    def ask(self, name: str, do: str, **order: Any) -> dict[str, Any] | None:
        """The worker's answer. None if the worker is lost, now or before."""
        if name not in self.workers:
            return None
        seconds = max(5.0, min(90.0, self.left() + 10))
        return self._try(name, lambda: self.workers[name].ask(seconds, do, **order))

    def latency(self) -> None:
        """Allocation and free, torch's hot path, by size."""
        rows = {}
        for name in self._names():
            order = {"sizes": self.plan.latency_sizes, "times": self.plan.latency_times}
            if told := self.ask(name, "latency", **order):
                rows[name] = told["rows"]
                self.ask(name, "drop")
        self.found["latency"] = rows

    def choose_batch(self) -> int:
        """The batch whose peak live bytes are about the plan's, from two smaller ones.

        They are not the smallest: with few sequences the optimizer's step has the peak, which does
        not grow with the batch.
        """
        if self.plan.live_bytes == 0:
            return self.plan.batch
        peaks = []
        for batch in PROBES:
            self.ask("native", "setup")
            told = self.ask("native", "steps", batch=batch, lengths=[self.plan.longest] * 2)
            if told is None or told["oom"]:
                raise WorkerError(f"native: no figure for a batch of {batch}: {told}")
            peaks.append(told["peak_requested_bytes"])
        slope = max(1, (peaks[1] - peaks[0]) / (PROBES[1] - PROBES[0]))
        self.per_sequence, self.fixed = slope, peaks[0] - PROBES[0] * slope
        return max(1, int((self.plan.live_bytes - self.fixed) / slope))

    def _names(self, control: bool = False) -> list[str]:
        return [name for name in self.workers if control or name != CONTROL]

    def rounds(self, names: list[str], batch: int, limit: int | None) -> dict[str, Any]:
        """Makes rounds of the same steps, by the workers in turn: their figures and ratios."""
        rows: dict[str, Any] = {
            name: {"rounds_ms": [], "round_calls": [], "losses": [], "oom": None} for name in names
        }
        warm = self.lengths[: self.plan.warm_up] + [self.plan.longest]
        for name in names:
            self.ask(name, "limit", bytes=limit)
            told = self.ask(name, "setup")
            if told is not None and "oom" not in told:
                told = self.ask(name, "steps", batch=batch, lengths=warm)
            self._keep(rows[name], told, measured=False)
        for turn in range(self.plan.rounds):
            if self.left() < 5:
                break
            self.say(f"  round {turn + 1} of {self.plan.rounds}")
            order = names[turn % len(names) :] + names[: turn % len(names)]
            for name in order:
                if name not in self.workers or rows[name]["oom"] is not None:
                    continue
                told = self.ask(name, "steps", batch=batch, lengths=self.lengths)
                self._keep(rows[name], told, measured=True)
        for row in rows.values():
            row["step_ms"] = _middle(row["rounds_ms"])
        return rows

    def _keep(self, row: dict[str, Any], told: dict[str, Any] | None, measured: bool) -> None:
        if told is None:
            return
        row["oom"] = told.get("oom")
        if row["oom"] is not None:
            row["oom"]["measured"] = measured
            return
        row["losses"] += told.pop("losses")
        times, calls = told.pop("ms"), told.pop("driver_calls")
        if measured:
            row["rounds_ms"].append(times)
            row["round_calls"].append(calls)
        row.update({key: value for key, value in told.items() if key != "oom"})

    def ample(self, batch: int) -> None:
        """Step time and memory with no limit. The losses must be the same bits."""
        names = self._names(control=True)
        rows = self.rounds(names, batch, None)
        for row in rows.values():
            row["ratios_to_native"] = _ratios(row, rows.get("native"))
            row["ratio_to_native"] = _median(row["ratios_to_native"])
            row["losses_as_native"] = row["losses"] == rows["native"]["losses"] != []
        self.found["ample"] = {"batch": batch, "lengths": self.lengths, "allocators": rows}

    def largest(self, limit: int) -> None:
        """The largest batch whose steps fit in `limit` bytes. Each try has a fresh model."""
        rows: dict[str, Any] = {}
        for name in list(self.workers):
            self.ask(name, "drop")
        most = max(2, int((limit - self.fixed) / self.per_sequence) + 1)
        lengths = sorted(self.lengths)[::2] + self.lengths + [self.plan.longest]
        for name in self._names():
            self.ask(name, "limit", bytes=limit)
            low, high, tries = most // 2, most + 1, []
            share = time.monotonic() + max(8.0, (self.left() - 30) / 4)
            while high - low > 1 and time.monotonic() < share and name in self.workers:
                batch = (low + 2 * high) // 3 if not tries else (low + high) // 2
                batch = min(max(batch, low + 1), high - 1)
                told = self.ask(name, "setup")
                if told is not None and "oom" not in told:
                    told = self.ask(name, "steps", batch=batch, lengths=lengths)
                if told is None:
                    break
                fits = told["oom"] is None
                tries.append({"batch": batch, "fits": fits, "oom": told["oom"]})
                low, high = (batch, high) if fits else (low, batch)
            fitting = max((each["batch"] for each in tries if each["fits"]), default=None)
            rows[name] = {"batch": fitting, "settled": high - low <= 1, "tries": tries}
            self.ask(name, "drop")
            self.say(f"  {name}: {fitting}")
        self.found["largest"] = {
            "limit_bytes": limit,
            "estimated_most": most,
            "lengths": lengths,
            "allocators": rows,
        }

    def tight(self, batch: int, live: int) -> None:
        """Step time at 3 % above the peak live bytes, and who runs out of memory where."""
        limit = -(-int(live * HEADROOM) // (2 * MIB)) * 2 * MIB
        names = [name for name in self._names() if name != "async"]
        for name in list(self.workers):
            self.ask(name, "drop")
        rows = self.rounds(names, batch, limit)
        ample = self.found["ample"]["allocators"]
        for name, row in rows.items():
            row["ratios_to_expandable"] = _ratios(row, rows.get("expandable"))
            row["ratio_to_expandable"] = _median(row["ratios_to_expandable"])
            row["ratio_to_own_ample"] = _ratio_of_steps(row, ample.get(name))
        self.found["tight"] = {"limit_bytes": limit, "live_bytes": live, "allocators": rows}

    def end(self) -> None:
        for worker in self.workers.values():
            worker.end()
        self.found["lost"] = self.lost


def _middle(rounds: list[list[float]]) -> float | None:
    """Milliseconds of a step: each step's median over the rounds, then their mean."""
    if not rounds:
        return None
    return statistics.fmean(statistics.median(step) for step in zip(*rounds, strict=True))


def _ratios(row: dict[str, Any], other: dict[str, Any] | None) -> list[float]:
    """One's time over the other's, round by round. Empty if one is missing."""
    pairs = zip(row["rounds_ms"], other["rounds_ms"] if other else [], strict=False)
    return [sum(mine) / sum(its) for mine, its in pairs]


def _median(ratios: list[float]) -> float | None:
    return statistics.median(ratios) if ratios else None


def _ratio_of_steps(row: dict[str, Any], other: dict[str, Any] | None) -> float | None:
    """The ratio of two runs whose rounds did not take turns."""
    if other is None or not row["rounds_ms"] or not other["rounds_ms"]:
        return None
    return float(row["step_ms"] / other["step_ms"])


def make_plan(free_bytes: int, memory: int) -> Plan:
    """Sizes for a GPU with so much free memory, on which all workers run at once."""
    share = min(memory, int(0.85 * free_bytes / len(ALLOCATORS)))
    return replace(REAL, live_bytes=int(share / 1.3))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--driver", type=click.Choice(["cuda", "sim"]), default="cuda", show_default=True)
@click.option("--seconds", default=200.0, show_default=True, help="Time for all of it.")
@click.option("--memory", default=16, show_default=True, help="Most GiB of one process.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON; else stdout.")
def main(driver: str, seconds: float, memory: int, out: Path | None) -> None:
    """Measures one training job under four allocators."""
    console = Console(stderr=True)
    plan = SIM if driver == "sim" else REAL
    run = Run(plan, driver, seconds, console.print)
    found = run.found
    free = [told["free_bytes"] for told in found["workers"].values() if "free_bytes" in told]
    if free:
        run.plan = plan = make_plan(min(free), memory * GIB)
    found |= {"driver": driver, "shape": plan.shape, "longest": plan.longest, "errors": {}}

    def part(name: str, do: Callable[[], None]) -> None:
        console.print(f"{name} ({run.left():.0f} s left)")
        try:
            do()
        except Exception as error:  # the other parts still run
            found["errors"][name] = f"{type(error).__name__}: {error}"[:1000]
            console.print(f"  {found['errors'][name]}")
        if out is not None:
            out.write_text(json.dumps(found, indent=1) + "\n")

    batch, live = 0, 0

    def ample() -> None:
        nonlocal batch, live
        batch = run.choose_batch()
        run.ample(batch)
        known = found["ample"]["allocators"]["native"].get("peak_requested_bytes")
        live = known or found["ample"]["allocators"]["glake"].get("peak_requested_bytes") or 0

    def tight() -> None:
        if not live:
            raise WorkerError("the peak live bytes are not known")
        run.tight(batch, live)

    def largest() -> None:
        if driver == "sim":
            run.per_sequence, run.fixed = 1.0, 0.0
        run.largest(4 if driver == "sim" else int(1.6 * plan.live_bytes))

    part("latency", run.latency)
    part("ample", ample)
    part("tight", tight)
    part("largest", largest)
    run.end()
    text = json.dumps(found, indent=1) + "\n"
    out.write_text(text) if out is not None else click.echo(text)
    if run.lost or found["errors"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
