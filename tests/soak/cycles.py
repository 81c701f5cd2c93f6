"""Starts processes that use glake on the simulator and lets them end in every way, many times.

    tests/soak/cycles.py [--cycles 1000] [--seed N] [--jobs 2] [--replay JSON]

Half of them run alone. The others run on one simulated machine with two processes that stay. They
are killed at random moments, return, raise, or call os._exit. Some have threads that allocate, or
forked children that use glake or do not. No process may hang, fail, or call the driver while it
ends. Afterwards the shared machine must work and hold nothing, and no file may be left. Exits
non-zero on a finding. Each finding has the description that --replay takes.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.progress import Progress

HERE = Path(__file__).resolve().parent
PATIENCE = 60.0  # seconds. A process should take one, and ten if torch compiles and loads
TORCH_SHARE = 0.02
MEMORY = "96MiB"


def environment(folder: Path, machine: str | None, torch: bool) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    kept |= {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": MEMORY, "GLAKE_SIM_DEVICES": "2"}
    kept |= {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(HERE.parents[1])}
    kept |= {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    if machine is not None:
        kept["GLAKE_SIM_MACHINE"] = machine
    if torch:
        kept |= {"GLAKE_ALLOCATOR": "1", "GLAKE_JIT_DIR": str(folder / "jit")}
    return kept


def where(process: subprocess.Popen[str]) -> str:
    """The stacks of a process that hangs: Python's go to its stderr, others are returned."""
    process.send_signal(signal.SIGUSR1)
    if (gdb := shutil.which("gdb")) is None:
        time.sleep(1)
        return "(with gdb installed, C++ stacks would follow)\n"
    command = [gdb, "-p", str(process.pid), "-batch", "-ex", "thread apply all bt 40"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout


def draw(dice: random.Random) -> dict[str, Any]:
    """The description of a process, chosen at random."""
    threads = dice.choice([0, 0, 1, 3])
    plan = {
        "seed": dice.randrange(1 << 30),
        "shared": dice.random() < 0.5,
        "devices": dice.choice([1, 1, 2]),
        "operations": dice.choice([1, 20, 60]),
        "threads": threads,
        "daemon": dice.random() < 0.5,
        "fork": dice.choice([None, None, "before", "amid", "amid"]),
        "fork_use": dice.choice(["nothing", "glake", "glake"]),
        "fork_end": dice.choice(["_exit", "sys.exit", "kill"]),
        "end": dice.choice(["return", "return", "exception", "_exit", "shutdown", "wait", "wait"]),
        "tidy": dice.random() < 0.5,
        "torch": dice.random() < TORCH_SHARE,
        "patience": PATIENCE / 2,
    }
    if plan["end"] == "wait":  # seconds after "ready"; if negative, after the start
        plan["kill_after"] = dice.choice([dice.uniform(0, 0.05), -dice.uniform(0, 0.4)])
    return plan


class Cycles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = f"cycles-{os.getpid()}"
        self.findings: list[str] = []
        (folder / "tmp").mkdir()
        self.witness = folder / "witness.so"
        compiler = os.environ.get("CC", "cc")
        build = [compiler, "-shared", "-fPIC", "-O1", str(HERE / "witness.c")]
        subprocess.run([*build, "-o", str(self.witness)], check=True)
        self.staying = [self.stay() for _ in range(2)]
        self.lock = threading.Lock()

    # Processes that stay.

    def stay(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(HERE / "actor.py"), "serve"],
            env=environment(self.folder, self.machine, False),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, process: subprocess.Popen[str], command: str) -> str:
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        process.stdin.write(command + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().rstrip()
        timer.cancel()
        return answer

    def check_the_machine(self) -> None:
        """Checks that the machine works and holds nothing when no other process is on it."""
        for process in self.staying:
            if (answer := self.ask(process, "work")) != "done":
                self.findings.append(f"a process that stayed answers {answer!r} to work")
        for process in self.staying:
            if (answer := self.ask(process, "used")) != "0":
                self.findings.append(f"the shared machine still holds {answer!r} bytes")

    # Processes that come and go.

    def cycle(self, plan: dict[str, Any]) -> None:
        """Runs one process, and adds its faults to the findings."""
        quiet = plan["end"] in ("return", "exception", "shutdown") and not (
            plan["daemon"] and plan["threads"]
        )
        description = json.dumps(plan)
        if quiet and not plan["torch"]:
            plan = plan | {"witness": str(self.witness)}
        shared = plan["shared"] and not plan["torch"]
        process = subprocess.Popen(
            [sys.executable, str(HERE / "actor.py"), json.dumps(plan)],
            env=environment(self.folder, self.machine if shared else None, plan["torch"]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        killed = self.kill_in_time(process, plan)
        try:
            out, err = process.communicate(timeout=PATIENCE * (5 if plan["torch"] else 1))
        except subprocess.TimeoutExpired:
            stacks = where(process)
            process.kill()
            out, err = process.communicate()
            self.find("hangs", description, out, err + stacks)
            return
        wanted = 1 if plan["end"] == "exception" else 0
        if (process.returncode != wanted and not killed) or "bad" in out:
            self.find(f"ends with {process.returncode}", description, out, err)

    def kill_in_time(self, process: subprocess.Popen[str], plan: dict[str, Any]) -> bool:
        if plan["end"] != "wait":
            return False
        after = plan["kill_after"]
        if after >= 0:
            assert process.stdout is not None
            process.stdout.readline()  # "ready", or nothing if it failed
        time.sleep(abs(after))
        failed = process.poll() is not None  # it ended by itself, but should have waited
        process.kill()
        return not failed

    def find(self, what: str, description: str, out: str, err: str) -> None:
        with self.lock:
            self.findings.append(f"{what}\n  --replay '{description}'\n{out}{err}")

    def finish(self) -> None:
        for process in self.staying:
            answer = self.ask(process, "bye")
            if answer != "[]" or process.wait(PATIENCE) != 0:
                self.findings.append(f"a process that stayed ends with {answer!r}")
        left = [*Path("/dev/shm").glob(f"glake-sim-*-{self.machine}*")]
        left += [path for path in (self.folder / "tmp").iterdir() if path.name[:1] != "."]
        if left:
            self.findings.append(f"left behind: {', '.join(map(str, left))}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--replay")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    plans = [draw(dice) for _ in range(options.cycles)]
    if options.replay:
        plans = [json.loads(options.replay)]
    folder = Path(tempfile.mkdtemp(prefix="glake-cycles-"))
    began = time.monotonic()
    try:
        cycles = Cycles(folder)
        with Progress(disable=not sys.stderr.isatty()) as progress:
            bar = progress.add_task("processes", total=len(plans))
            for begin in range(0, len(plans), 50):
                with ThreadPoolExecutor(options.jobs) as pool:
                    for done in as_completed(
                        pool.submit(cycles.cycle, plan) for plan in plans[begin : begin + 50]
                    ):
                        done.result()
                        progress.advance(bar)
                cycles.check_the_machine()
        cycles.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for finding in cycles.findings:
        print(f"FINDING: {finding}")
    ends = Counter(plan["end"] for plan in plans)
    forks = sum(plan["fork"] is not None for plan in plans)
    print(
        f"{len(plans)} processes ({', '.join(f'{n} {end}' for end, n in ends.items())}; {forks} "
        f"that fork) in {time.monotonic() - began:.0f} s: {len(cycles.findings)} findings"
    )
    return 1 if cycles.findings else 0


if __name__ == "__main__":
    sys.exit(main())
