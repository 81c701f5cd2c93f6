"""CuPy, built with the shared CUDA runtime, on glake's memory over the simulated GPU."""

import os
import subprocess
from pathlib import Path

import pytest

from glake.dryrun import libraries

PROGRAMS = Path(__file__).resolve().parent / "programs"
CASES = (
    "arrays",
    "streams",
    "devices",
    "refusals",
    "pools",
    "pinned",
    "graphs",
    "captured_by_torch",
    "foreign",
    "with_torch",
    "threads",
    "forked",
)
Done = subprocess.CompletedProcess[str]


def run(program: str, case: str, folder: Path) -> Done:
    """Runs a program by the Python that has this CuPy."""
    python = os.environ.get("CUPY_PYTHON")
    if not python:
        pytest.skip("left out: CUPY_PYTHON names no Python with CuPy of `make integration-cupy`")
    env = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    env |= {
        "CUDA_PATH": str(Path(python).parents[1] / "cuda"),  # headers for NVRTC
        "CUPY_CACHE_DIR": str(folder),  # its kernels are empty, so nobody else may find them
        "GLAKE_DRIVER": "cuda",
        "GLAKE_SIM_DEVICES": "2",
        "GLAKE_SIM_MEMORY": "512MiB",
        "GLAKE_SIM_PRESET": "dgx_a100",
        "GLAKE_STRICT": "1",
    }
    return subprocess.run(
        [python, str(PROGRAMS / f"{program}.py"), case],
        env=libraries.environment(env),
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.mark.parametrize("case", CASES)
def test_it_works_on_glakes_memory(tmp_path: Path, case: str) -> None:
    done = run("cupy_cuda", case, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("cupy 14."), done.stdout
    # Neither a function that a stand-in lacks, nor an error in a finalizer.
    assert "glake: lib" not in done.stderr and "ignored" not in done.stderr, done.stderr


@pytest.mark.parametrize("way", ["held", "cycle", "atexit", "thread", "raised", "uninstalled"])
def test_a_process_ends_quietly(tmp_path: Path, way: str) -> None:
    done = run("cupy_ends", way, tmp_path)
    if way == "raised":
        assert done.returncode == 1 and done.stderr.endswith("ValueError: the program's own\n")
        assert done.stderr.count("Traceback") == 1, done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert "ended" in done.stdout and ("allocated" in done.stdout) == (way == "atexit")
