"""Runs each file of inside/ in a Python of its own: a process has one driver, and one engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# GLAKE_ variables besides those all have.
PROGRAMS: dict[str, dict[str, str]] = {
    "blocks.py": {},
    "copies.py": {},
    "files.py": {},
    "gds.py": {},
    "handles.py": {"COPY_ORDER": "held"},  # what is cancelled, and what evades a link
    "host_memory.py": {},
    "lending.py": {},
    "nodes.py": {},
    "offload.py": {"SIM_MEMORY": "256MiB"},
    "streams.py": {},
    "tensors.py": {},
    "typed.py": {},
}


def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    """A Python over the simulated 8xA100."""
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    settings = {"DRIVER": "sim:dgx_a100", "SIM_MEMORY": "128MiB"} | options
    given = {f"GLAKE_{name}": value for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, *arguments],
        # UCX would go by shared memory: TCP stands for the network between nodes.
        env={**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "UCX_TLS": "tcp", **given},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_file_is_run() -> None:
    files = {path.name for path in (HERE / "inside").glob("*.py")}
    assert files - {"memory.py", "driver.py"} == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str) -> None:
    done = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"inside/{program}",
        **PROGRAMS[program],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr  # of objects at the end


def test_importing_loads_nothing() -> None:
    code = (
        "import sys, glake.transfer as t; dir(t); t.Raw(1, 2); "
        "assert not {'torch', 'numpy', 'glake._C', 'scipy'} & set(sys.modules), sys.modules"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("held", ["handle = ", ""])
@pytest.mark.parametrize("size", [64 << 20, 4096])
def test_exit_while_a_copy_runs(held: str, size: int) -> None:
    code = (
        "import numpy as np, glake.transfer as t; from glake import _C\n"
        f"a = t.Raw(_C.malloc({size}), {size})\n"
        f"{held}t.copy(a, np.zeros({size}, np.uint8))\n"
    )
    done = run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_fork_is_a_typed_error() -> None:
    code = """
import os, numpy as np, glake.transfer as t
from glake import _C, errors
a = t.Raw(_C.malloc(64 << 20), 64 << 20)
handle = t.copy(a, np.zeros(64 << 20, np.uint8))
child = os.fork()
if child == 0:
    try:
        t.copy(a, np.zeros(64 << 20, np.uint8))
    except errors.Forked:
        raise SystemExit(7)
    raise SystemExit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
handle.wait()
"""
    done = run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_of_another_process() -> None:
    """A block opened from its owner's process is memory like any other."""
    code = """
import os, subprocess, sys, numpy as np, glake.transfer as t
from glake import _C
size = 8 << 20
if len(sys.argv) > 1:
    address, bytes = _C.ipc_open(sys.argv[1], 1)
    assert bytes >= size
    shared = t.Raw(address, size, 1)
    data = np.empty(size, np.uint8)
    t.copy(data, shared).wait()
    assert (data == 7).all()
    t.copy(shared, np.full(size, 9, np.uint8)).wait()
    t.default_engine().close()
    _C.ipc_close(address)
    raise SystemExit
block = _C.malloc(size, 1)
mine = t.Raw(block, size, 1)
t.copy(mine, np.full(size, 7, np.uint8)).wait()
child = subprocess.run([sys.executable, "-c", os.environ["CODE"], _C.ipc_share(block)])
assert child.returncode == 0
data = np.empty(size, np.uint8)
t.copy(data, mine).wait()
assert (data == 9).all()
"""
    os.environ["CODE"] = code
    try:
        done = run("-c", code, SIM_MACHINE=f"transfer-{os.getpid()}")
    finally:
        del os.environ["CODE"]
    assert done.returncode == 0, done.stderr
