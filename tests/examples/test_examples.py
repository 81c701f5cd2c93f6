"""Every program of examples/ runs on the simulator as its docstring says, and prints its result.

Those that need PyTorch's CUDA build are run where REAL_PYTHON names one, as in tests/real.
"""

import os
from pathlib import Path

import pytest
from example_running import EXAMPLES, output

HERE = {
    "environment_variable": "loss ",
    "handover": "handed over four times: the same bytes",
    "library_import": "refused: glake: CUDA out of memory",
    "metrics": 'glake_transfer_path_bytes_total{path="cpu>cuda:2>cuda:0"}',
    "nodes": "read 16 MiB, all alike: True",
    "pause_and_resume": "resumed: the same bytes at the same address",
    "pinned_memory": "driver_allocs                           1",
    "record_and_replay": "glake        needs",
    "share_between_processes": "the child answered: world",
    "transfer_copy": "cpu>cuda:2>cuda:0",
    "transfer_explain": "plain copy",
}
CUDA = {"dry_run": "glake    holds", "private_pool": "the pool holds 64 MiB"}


def test_every_example_is_run() -> None:
    assert sorted({**HERE, **CUDA}) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", sorted({**HERE, **CUDA}))
def test_an_example_is_short_and_of_one_subject(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", sorted(HERE))
def test_example(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    machine = f"example{os.getpid()}"  # two suites beside each other share none
    adapters = tmp_path_factory.getbasetemp() / "jit"
    variables = {"GLAKE_SIM_MACHINE": machine} if name == "share_between_processes" else {}
    assert HERE[name] in output(name, GLAKE_JIT_DIR=str(adapters), **variables)


@pytest.mark.parametrize("name", sorted(CUDA))
def test_example_of_cuda(name: str, tmp_path: Path) -> None:
    python = os.environ.get("REAL_PYTHON")
    if not python:
        pytest.skip("left out: REAL_PYTHON names no Python with a CUDA build of PyTorch")
    assert CUDA[name] in output(name, python, GLAKE_JIT_DIR=str(tmp_path))
