"""Counts what each hook costs a job that does not use it: driver calls and instructions.

at_rest.py [--steps N]: valgrind's callgrind counts training steps without the hook and with it, in
one process (tests/integrations/programs/at_rest.py). The hooks of DeepSpeed and Megatron are
counted in jobs of these packages after `make integration-environment`, and vLLM's in its engine
after `make integration-vllm`. It takes minutes.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "integrations" / "programs" / "at_rest.py"
PACKAGES = PROGRAM.parents[1] / "packages"  # stand-ins of vLLM and torch_memory_saver
# (Python, its additional packages, its hooks). A hook that a later environment has too is counted
# there.
PLACES = (
    (Path(sys.executable), PACKAGES, ("cupy", "fsdp2", "memory_saver", "vllm")),
    (ROOT / ".venv-frameworks" / "bin" / "python", None, ("deepspeed", "megatron")),
    (ROOT / ".venv-vllm" / "bin" / "python", None, ("vllm",)),
)
SOURCE = Path(__file__).with_name("requests.c")
Counts = dict[str, dict[str, list[int]]]  # hook: {"off" or "on": [driver calls, instructions]}


def library(folder: Path) -> Path:
    """Compiles a library by which Python makes callgrind's client requests."""
    made = folder / "librequests.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE)], check=True)
    return made


def instructions(folder: Path) -> dict[str, int]:
    """callgrind's count of each stretch, by the stretch's name. Each stretch has a file."""
    found: dict[str, int] = {}
    for file in sorted(folder.glob("counts.*")):
        text = file.read_text(errors="replace")
        name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
        total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        if name is not None:  # the last file is of the program's end
            if total is None:
                raise ValueError(f"{file}: callgrind has written no total of {name[1]!r}")
            found[name[1].strip()] = int(total[1])
    return found


def measure(python: Path, packages: Path | None, names: tuple[str, ...], steps: int) -> Counts:
    """Runs the program once under valgrind, in that environment."""
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        path = [str(ROOT)] if packages is None else [str(packages), str(ROOT)]
        asked = {
            "CALLGRIND": str(library(folder)),
            "DS_ACCELERATOR": "cpu",
            "GLAKE_DRIVER": "sim",
            "GLAKE_SIM_MEMORY": "8GiB",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(path),
        }
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "-q"]
        command += [f"--callgrind-out-file={folder}/counts", str(python), str(PROGRAM), str(steps)]
        done = subprocess.run(
            [*command, *names], env=clean | asked, stdout=subprocess.PIPE, check=True, text=True
        )
        calls = json.loads(done.stdout.splitlines()[-1])
        counted = instructions(folder)
    return {
        name: {way: [calls[name][way], counted[f"{name} {way}"]] for way in ("off", "on")}
        for name in names
    }


def rows(told: Counts, steps: int) -> list[str]:
    """A line for each hook, with its cost per step."""
    lines = []
    for name, ways in told.items():
        (calls, off), (more_calls, on) = ways["off"], ways["on"]
        row = f"{calls / steps:10.2f} -> {more_calls / steps:8.2f}"
        row += f"{off / steps:14.0f} -> {on / steps:12.0f}{on / off - 1:10.3%}"
        lines.append(f"{name:14}{row}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    for tool in ("valgrind", "cc"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is missing: on Debian or Ubuntu, apt-get install valgrind gcc")
    print(f"of a training step, {steps} counted")
    print(f"{'hook':14}{'driver calls':>22}{'instructions':>30}{'more':>10}")
    here = [place for place in PLACES if place[0].exists()]
    for at, (python, packages, names) in enumerate(here):
        later = {name for _, _, others in here[at + 1 :] for name in others}
        chosen = tuple(name for name in names if name not in later)
        print("\n".join(rows(measure(python, packages, chosen, steps), steps)), flush=True)


if __name__ == "__main__":
    main()
