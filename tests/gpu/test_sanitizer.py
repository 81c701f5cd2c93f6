"""compute-sanitizer's memcheck over stitched memory, where the tool is installed and works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_running import PROGRAMS, ROOT, environment

TOOL = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
BINARIES = ROOT / "build" / "tests" / "lib"


def memcheck(*command: str, glake: bool) -> None:
    if not Path(TOOL).exists():
        pytest.skip("compute-sanitizer is not installed")
    done = subprocess.run(
        [TOOL, "--tool", "memcheck", "--error-exitcode", "99", *command],
        env=environment(glake),
        cwd=PROGRAMS,
        capture_output=True,
        text=True,
        timeout=150,
    )
    said = done.stdout + done.stderr
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not work on this machine")
    assert done.returncode == 0, said[-4000:]
    assert "ERROR SUMMARY: 0 errors" in said, said[-4000:]


@pytest.mark.gpu
@pytest.mark.xdist_group("sanitizer")
def test_granules_at_several_addresses() -> None:
    memcheck(str(BINARIES / "granule_stress"), "libcuda.so.1", "5", glake=False)


@pytest.mark.gpu
@pytest.mark.xdist_group("sanitizer")
def test_torch_on_stitched_memory() -> None:
    program = str(PROGRAMS / "streams.py")
    memcheck(sys.executable, program, "check_stitched_memory_holds_its_bytes", glake=True)
