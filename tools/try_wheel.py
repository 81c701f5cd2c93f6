"""Tries a wheel as in a container: a clean environment, no compiler on PATH, no driver.

    python tools/try_wheel.py WHEEL [--python PYTHON] [--torch]

With --torch PyTorch's CPU build is installed too, and a script gets its memory from glake through
the adapter in the wheel. If a command fails, an AssertionError has its output.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools" / "programs" / "script.py"
# The words of each command, and a text that its output must contain.
COMMANDS = (
    (["glake", "--help"], "GPU memory that does not fragment"),
    (["glake", "info"], "simcuda"),
    (["glake", "replay", "sample", "--policy", "glake"], "peak live 2.37 GiB"),
    (["glake", "topo", "--preset", "dgx_a100", "--plan", "cpu", "cuda:0"], "plain copy"),
    (["python", str(ROOT / "examples" / "pinned_memory.py")], "driver_allocs"),
)
WITH_TORCH = ((["glake", "run", "script.py"], "of glake: 4194304"),)


def said(words: list[str], folder: Path) -> str:
    """Runs a command with only the environment's own programs on PATH. Returns what it prints."""
    options = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "1GiB"}
    programs = folder / "venv" / "bin"
    done = subprocess.run(
        [str(programs / words[0]), *words[1:]],
        cwd=folder,
        env={"HOME": str(folder / "home"), "PATH": str(programs), **options},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def try_wheel(wheel: Path, python: str, torch: bool, folder: Path) -> None:
    """Installs and tries the wheel in an empty `folder`."""
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
    inside = str(folder / "venv" / "bin" / "python")
    if torch:
        subprocess.run([inside, str(ROOT / "tools" / "cpu_torch.py")], check=True)
    subprocess.run([inside, "-m", "pip", "install", "-q", str(wheel)], check=True)
    shutil.copy(SCRIPT, folder)
    for words, expected in (*COMMANDS, *(WITH_TORCH if torch else ())):
        text = said(words, folder)
        assert expected in text, f"{' '.join(words)} does not say {expected!r}:\n{text}"
        print("ok:", *words)
    assert not (folder / "home").exists(), "something was compiled, or kept in the home folder"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(os.path.realpath(folder))
        try_wheel(given.wheel.resolve(), given.python, given.torch, here)


if __name__ == "__main__":
    main()
