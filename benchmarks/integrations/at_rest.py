"""What each hook costs a job that does not use it: driver calls and instructions, both counted.

at_rest.py [--steps N]: by valgrind's callgrind, training steps without the hook and with it in one
process (tests/integrations/programs/at_rest.py). DeepSpeed's and Megatron's are counted where `make
integration-environment` was run. Takes minutes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "integrations" / "programs" / "at_rest.py"
HERE = ("cupy", "fsdp2", "memory_saver", "vllm")
FRAMEWORKS = ("deepspeed", "megatron")
SOURCE = r"""
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char* text) { CALLGRIND_DUMP_STATS_AT(text); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def library(folder: Path) -> Path:
    """Client requests of callgrind, to be called from Python."""
    (folder / "requests.c").write_text(SOURCE)
    made = folder / "librequests.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(folder / "requests.c")], check=True
    )
    return made


def measure(python: Path, names: tuple[str, ...], steps: int) -> dict[str, dict[str, list[int]]]:
    """Of each hook, off and on: driver calls, instructions."""
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        asked = {
            "CALLGRIND": str(library(folder)),
            "DS_ACCELERATOR": "cpu",
            "GLAKE_DRIVER": "sim",
            "GLAKE_SIM_MEMORY": "1GiB",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(str, (PROGRAM.parents[1] / "packages", ROOT))),
        }
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "-q"]
        command += [f"--callgrind-out-file={folder}/counts", str(python), str(PROGRAM), str(steps)]
        done = subprocess.run(
            [*command, *names], env=clean | asked, stdout=subprocess.PIPE, check=True, text=True
        )
        calls = json.loads(done.stdout.splitlines()[-1])
        instructions = {}
        for file in folder.glob("counts.*"):
            text = file.read_text(errors="replace")
            what = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.MULTILINE)
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
            if what and total:
                instructions[what[1].strip()] = int(total[1])
    return {
        name: {way: [calls[name][way], instructions[f"{name} {way}"]] for way in ("off", "on")}
        for name in names
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    told = measure(Path(sys.executable), HERE, steps)
    others = ROOT / ".venv-frameworks" / "bin" / "python"
    if others.exists():
        told |= measure(others, FRAMEWORKS, steps)
    print(f"of a training step, {steps} counted")
    print(f"{'hook':14}{'driver calls':>22}{'instructions':>30}{'more':>10}")
    for name, ways in told.items():
        (calls, off), (more_calls, on) = ways["off"], ways["on"]
        row = f"{calls / steps:10.2f} -> {more_calls / steps:8.2f}"
        row += f"{off / steps:14.0f} -> {on / steps:12.0f}{on / off - 1:10.3%}"
        print(f"{name:14}{row}", flush=True)


if __name__ == "__main__":
    main()
