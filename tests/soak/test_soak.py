"""Short runs of the programs in this folder. Their docstrings say what they do."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.proof
HERE = Path(__file__).parent


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("seed", ["11", "12"])
def test_processes_end_in_every_way(seed: str) -> None:
    done = run("cycles.py", "--cycles", "30", "--seed", seed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 processes" in done.stdout


@pytest.mark.parametrize("options", [["--limit", "2GiB"], ["--limit", "128MiB", "--bytes"]])
def test_jobs_follow_each_other(options: list[str]) -> None:
    done = run("soak.py", "--minutes", "0.15", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 findings" in done.stdout
