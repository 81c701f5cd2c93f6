"""Processes that end with device memory still held: no message, no crash, no hang."""

import pytest
from gpu_running import PROGRAMS, run_program

CASES = ("tensors", "threads", "graph", "pool", "pinned", "work_pending", "leaving")


@pytest.mark.gpu
@pytest.mark.xdist_group("exits")
@pytest.mark.parametrize("case", CASES)
def test_ends_cleanly(case: str) -> None:
    done = run_program(PROGRAMS / "exits.py", case)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert not [line for line in done.stderr.splitlines() if "Warning" not in line], done.stderr
