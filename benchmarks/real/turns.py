"""The smallest GPU on which two programs run that need their peaks at different times.

It needs a Python with the CUDA build (`make real-environment`), runs over the simulated driver, and
takes some five minutes. Each program keeps 1 GiB, and in its turn needs 6 GiB more. The size is
found by halving, to a quarter of a GiB. Writes results/turns.json.
"""

import datetime
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import glake
from glake.dryrun import libraries

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "turns.json"
PROGRAM = HERE / "jobs" / "turns.py"
LIVE_GIB, STEP_GIB, TURNS = 8.0, 0.25, 4
GLAKE = {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}
SIDES = {
    "PyTorch's default": {"GLAKE_ALLOCATOR": "0"},
    "`expandable_segments`": {
        "GLAKE_ALLOCATOR": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    },
    "glake": GLAKE,
    "glake, `GLAKE_COOPERATE=1`": GLAKE | {"GLAKE_COOPERATE": "1"},
}


def runs(side: str, gib: float, number: int) -> bool:
    """Whether both programs end. RuntimeError if one ends in another way than out of memory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GLAKE_")}
    simulated = {
        "GLAKE_SIM_PHANTOM": "1",
        "GLAKE_SIM_MEMORY": f"{round(gib * 1024)}MiB",
        "GLAKE_SIM_MACHINE": f"turns{os.getpid()}-{number}",
    }
    both = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(seed)],
            env=libraries.environment(kept | simulated | SIDES[side]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    try:
        return all(_took_turn(each, turn) for turn in range(TURNS + 1) for each in both)
    finally:
        for each in both:
            each.kill()
            each.communicate()


def _took_turn(program: "subprocess.Popen[str]", turn: int) -> bool:
    assert program.stdin is not None and program.stdout is not None
    if turn != 0:  # before the first turn each says that it is ready
        print("turn", file=program.stdin, flush=True)
    if program.stdout.readline():
        return True
    _, error = program.communicate()
    if "OutOfMemoryError" not in error:
        raise RuntimeError(f"a program ended with {program.returncode}: {error[-2000:]}")
    return False


def smallest(side: str) -> float:
    """In GiB."""
    low, high, number = 0, round(LIVE_GIB / STEP_GIB), 0  # steps above the live bytes
    while low < high:
        middle = (low + high) // 2
        number += 1
        if runs(side, LIVE_GIB + middle * STEP_GIB, number):
            high = middle
        else:
            low = middle + 1
    return LIVE_GIB + low * STEP_GIB


def main() -> None:
    print("| | smallest GPU, GiB | x live |\n|---|---|---|")
    rows = []
    for side in SIDES:
        gib = smallest(side)
        print(f"| {side} | {gib:.2f} | {gib / LIVE_GIB:.2f} |", flush=True)
        rows.append({"side": side, "gib": gib})
    told = {
        "date": datetime.date.today().isoformat(),
        "torch": metadata.version("torch"),
        "glake": glake.__version__,
        "driver": "simulated",
        "live_gib": LIVE_GIB,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
