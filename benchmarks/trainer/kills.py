"""Kills ranks at random times. The run must end with the losses of a run without kills.

A hundred kills over 300 steps take half an hour on two cores:

    python benchmarks/trainer/kills.py --out benchmarks/trainer/results/kills.json

Goodput with a kill every 50 steps:

    python benchmarks/trainer/kills.py --kills 0 --every 50
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from glake.trainer.goodput import Goodput, goodput, last_of_each_step, records

DURING_START = 0.15  # the share of kills that hit ranks while they start
PATIENCE_S = 300.0  # for a step to end, even if interpreters start on a busy machine


@dataclass
class Job:
    """A run of the trainer under torchrun, with ranks to kill."""

    folder: Path
    process: subprocess.Popen[bytes]

    def steps(self) -> int:
        """The last step that is logged."""
        try:
            log = records(self.folder / "log.jsonl")
        except FileNotFoundError:
            return 0
        return max((each["step"] for each in log if each["event"] == "step"), default=0)

    def ranks(self) -> list[int]:
        """The ranks' processes."""
        pid = self.process.pid
        try:
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []
        return [int(each) for each in text.split() if b"glake.trainer" in _command(int(each))]

    def reach(self, step: int) -> bool:
        """Waits until a step is logged; False if the job ended before."""
        before, end = -1, 0.0
        while (at := self.steps()) < step:
            if at > before:
                before, end = at, time.monotonic() + PATIENCE_S
            if self.process.poll() is not None:
                return False
            if time.monotonic() > end:
                raise TimeoutError(f"step {at + 1} is not done after {PATIENCE_S:.0f} s")
            time.sleep(0.02)
        return True


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def job(folder: Path, text: Path, steps: int, ranks: int, changes: list[str]) -> Iterator[Job]:
    """Starts a job, and ends all of its processes afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "--max-restarts=1000", "--monitor-interval=0.05"]
    command += ["-m", "glake.trainer"]
    command += ["--config", "gpt-tiny", "--data", str(text), "--folder", str(folder)]
    command += ["--steps", str(steps), *(f"--set={change}" for change in changes)]
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, env=_environment()
        )
        running = Job(folder, process)
        try:
            yield running
        finally:
            if process.poll() is None:
                for rank in running.ranks():
                    _killed(rank)  # each rank is a group of its own
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}


def finished(running: Job) -> dict[int, dict[str, Any]]:
    """Waits for the end, and returns the steps' records. RuntimeError with its last output if it
    fails."""
    running.reach(1 << 60)
    code = running.process.wait()
    if code != 0:
        words = (running.folder / "output.txt").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"the job ended with {code}: {words}")
    return last_of_each_step(records(running.folder / "log.jsonl"))


class Killer:
    """Kills one rank in each attempt that torchrun makes, and counts the ranks that it hit."""

    def __init__(self, running: Job, draw: random.Random) -> None:
        self.hit = 0
        self._running, self._draw = running, draw
        self._struck: set[int] = set()  # ranks of attempts that a kill has ended

    def waits_for_ranks(self) -> list[int]:
        """Waits for ranks of an attempt that no kill has hit. Returns none if the job ended.

        Without the wait a kill would hit nobody, or ranks that torchrun is ending already.
        """
        end = time.monotonic() + PATIENCE_S
        while not (ranks := [each for each in self._running.ranks() if each not in self._struck]):
            if self._running.process.poll() is not None:
                return []
            if time.monotonic() > end:
                raise TimeoutError(f"no rank has started after {PATIENCE_S:.0f} s")
            time.sleep(0.005)
        return ranks

    def kill(self) -> bool:
        """Kills a random rank, as soon as there is one. False if the job ended before."""
        while ranks := self.waits_for_ranks():
            if _killed(self._draw.choice(ranks)):
                self._struck |= {*ranks, *self._running.ranks()}
                self.hit += 1
                return True
        return False


def kill_at_random(running: Job, kills: int, steps: int, draw: random.Random) -> int:
    """Kills a random rank at `kills` random times. Returns how often it hit one."""
    killer = Killer(running, draw)
    # The last kill comes early, as a job with short steps could otherwise end before it.
    for goal in sorted(draw.uniform(0, 0.8 * steps) for _ in range(kills)):
        if draw.random() < DURING_START and killer.hit:
            killer.waits_for_ranks()
            time.sleep(draw.uniform(0, 3))
        elif not running.reach(int(goal) + 1):
            break
        time.sleep(draw.uniform(0, 0.1))
        if not killer.kill():
            break
    return killer.hit


def kill_every(running: Job, every: int, steps: int, draw: random.Random) -> int:
    """Kills a random rank after every so many steps, at a random time within a step."""
    killer = Killer(running, draw)
    for goal in range(every, steps - 1, every):
        if not running.reach(goal):
            break
        time.sleep(draw.uniform(0, 0.2))
        if not killer.kill():
            break
    return killer.hit


def asked(steps: int, kills: int, every: int) -> int:
    """How many kills a trial has to make."""
    return len(range(every, steps - 1, every)) if every else kills


def _killed(pid: int) -> bool:
    """Kills the process. False if it had ended by itself."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def differences(one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]) -> list[int]:
    """Steps of both runs whose loss or gradient norm is not the same, to the bit."""
    return [
        step
        for step in sorted(one.keys() & other.keys())
        if any(one[step][key] != other[step][key] for key in ("loss", "norm"))
    ]


def some_text(path: Path) -> Path:
    """The sources of Python's own standard library, as one file."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    path.write_bytes(b"\n".join(each.read_bytes() for each in sources[:40]))
    return path


def trial(
    folder: Path, steps: int, kills: int, every: int, ranks: int, seed: int, changes: list[str]
) -> dict[str, Any]:
    """Makes one run without kills and one with them; returns the comparison."""
    began, load = datetime.now(timezone.utc), os.getloadavg()[1]
    draw = random.Random(seed)
    text = some_text(folder / "text")
    with job(folder / "calm", text, steps, ranks, changes) as calm:
        expected = finished(calm)
    with job(folder / "killed", text, steps, ranks, changes) as running:
        if every:
            hit = kill_every(running, every, steps, draw)
        else:
            hit = kill_at_random(running, kills, steps, draw)
        found = finished(running)
    log = records(folder / "killed" / "log.jsonl")
    starts = [each for each in log if each["event"] == "start"][1:]
    result: Goodput = goodput(log)
    return {
        "date": began.strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "torch": importlib.metadata.version("torch"),
        "cores": os.cpu_count(),
        "load_average_before_and_after": [load, os.getloadavg()[1]],
        "steps": steps,
        "ranks": ranks,
        "kills": hit,
        "restarts": len(starts),
        "from_memory": sum(each["source"] == "memory" for each in starts),
        "from_disk": sum(each["source"] == "disk" for each in starts),
        "steps_without_record": sorted(expected.keys() ^ found.keys()),
        "steps_that_differ": differences(expected, found),
        "final_loss": [expected[steps]["loss"], found[steps]["loss"]],
        "goodput": result.as_dict(),
        "in_words": str(result),
    }


@click.command()
@click.option("--steps", default=300, show_default=True, type=click.IntRange(10))
@click.option("--kills", default=100, show_default=True, type=click.IntRange(0))
@click.option("--every", default=0, help="Kill after every so many steps instead.")
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True)
@click.option("--set", "changes", multiple=True, help="As of the trainer.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Results, JSON.")
def main(
    steps: int,
    kills: int,
    every: int,
    ranks: int,
    seed: int,
    changes: tuple[str, ...],
    out: Path | None,
) -> None:
    """Kill ranks of a run, and compare it with one that was left alone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the job as well
    given = list(changes) or ["checkpoint.every=25"]
    with tempfile.TemporaryDirectory() as scratch:
        found = trial(Path(scratch), steps, kills, every, ranks, seed, given)
        if out is not None:
            out.write_text(json.dumps(found, indent=1) + "\n")
            log = Path(scratch) / "killed" / "log.jsonl"
            out.with_suffix(".jsonl").write_bytes(log.read_bytes())
    click.echo(json.dumps(found, indent=1))
    for wrong in ("steps_without_record", "steps_that_differ"):
        if found[wrong]:
            raise click.ClickException(f"{wrong}: {found[wrong]}")
    if found["kills"] < asked(steps, kills, every):
        raise click.ClickException(f"the run was over after {found['kills']} kills")


if __name__ == "__main__":
    main()
