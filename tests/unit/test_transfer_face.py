"""glake.transfer as a user meets it: the driver in force, typed errors, plans that are cheap."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from glake import errors
from glake.transfer import topology

ROOT = Path(__file__).resolve().parents[2]


def lines(program: str, **options: str) -> list[str]:
    """What a Python of its own prints; GLAKE_* options without their prefix."""
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    given = {f"GLAKE_{name}": value for name, value in options.items()}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**clean, "PYTHONPATH": str(ROOT), **given},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("opened", ["_C.device_count()", "t.default_engine()"])
def test_the_topology_is_that_of_the_driver_in_force(opened: str) -> None:
    program = f"""
        import numpy as np
        from glake import _C, transfer as t
        from glake.transfer import topology
        _C.configure("DRIVER", "sim:dgx1v")
        {opened}
        print(topology.current().name, t.plan("cpu", "cuda:0", 1 << 30).platform)
        block = _C.malloc(64, 0, 0)
        t.copy(t.Raw(block, 64, 0), np.ones(64, np.uint8)).wait()
        print(t.default_engine().topology.name)
    """
    assert lines(program) == ["dgx1v dgx1v", "dgx1v"]
    assert lines(program, DRIVER="sim:dgx_a100") == ["dgx1v dgx1v", "dgx1v"]


def test_a_file_as_a_preset_is_told_the_way() -> None:
    with pytest.raises(errors.InvalidOption, match="GLAKE_SIM_PLATFORMS=FILE"):
        topology.current({"GLAKE_DRIVER": "sim:/box/odd.json"})
    with pytest.raises(errors.InvalidOption) as refused:
        topology.current({"GLAKE_DRIVER": "sim:odd"})
    assert "GLAKE_SIM_PLATFORMS" not in str(refused.value)
