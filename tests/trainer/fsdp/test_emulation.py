"""Offload through glake's transfer engine, in the emulation, with tensors in simulated memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_offload_goes_by_the_engine_and_changes_no_loss():
    environment = {
        **os.environ,
        "GLAKE_DRIVER": "sim",
        "GLAKE_ALLOCATOR": "1",
        "PYTHONPATH": f"{HERE.parents[2]}{os.pathsep}{HERE}",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "emulated.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("mode") == "emulation"
    expected = found.pop("expected")
    assert len(found) == 3
    for options, one in found.items():
        assert one["losses"] == pytest.approx(expected, rel=1e-6), options
        assert one["copies"] > 0, f"{options}: nothing went by the engine"
