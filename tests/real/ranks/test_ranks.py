"""Several ranks of the unmodified CUDA build of PyTorch, over one simulated machine.

REAL_PYTHON names an interpreter that has such a build. Without it nothing here is run.
"""

import os
import socket
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from glake.dryrun import libraries

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = sys.executable
DIED = -9


@pytest.fixture(autouse=True)
def python(real_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the interpreter that run_ranks takes."""
    monkeypatch.setattr(sys.modules[__name__], "PYTHON", real_python)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(size: int, program: str, *arguments: str, **variables: str) -> list[tuple[int, str]]:
    """Each rank's exit status and output. A rank that does not end is killed."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    shared = libraries.environment(kept) | {
        "GLAKE_SIM_MACHINE": f"ranks-{uuid.uuid4().hex[:12]}",
        "GLAKE_SIM_MEMORY": "1GiB",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500",
        **variables,
    }
    ranks = [
        subprocess.Popen(
            [PYTHON, str(PROGRAMS / program), *arguments],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    ends = []
    try:
        for process in ranks:
            output, _ = process.communicate(timeout=240)
            ends.append((process.returncode, output))
    finally:
        for process in ranks:
            process.kill()
    return ends


def check_all(ends: list[tuple[int, str]], word: str) -> None:
    for rank, (status, output) in enumerate(ends):
        assert status == 0 and word in output.split(), f"rank {rank} exited {status}:\n{output}"


@pytest.mark.parametrize("how", ["lazy", "eager"])
def test_collectives(how: str) -> None:
    """No file of the communicators or of the machine is left. They are in a folder of this test's
    own, because other tests run ranks at the same time."""
    with tempfile.TemporaryDirectory(prefix="glake-test-", dir="/dev/shm") as machine:
        ends = run_ranks(2, "collectives.py", how, GLAKE_SIM_MACHINE_DIR=machine)
        check_all(ends, "right")
        assert os.listdir(machine) == []


def test_collectives_of_four_ranks() -> None:
    check_all(run_ranks(4, "collectives.py", "eager"), "right")


def test_ranks_that_see_one_gpu_each() -> None:
    """CUDA_VISIBLE_DEVICES differs by rank, and each rank's GPU is its cuda:0."""
    check_all(run_ranks(2, "one_gpu_each.py"), "right")


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_training(how: str) -> None:
    check_all(run_ranks(2, "training.py", how), "trained")


GLAKE = {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}


@pytest.mark.parametrize("allocator", [{}, GLAKE], ids=["native", "glake"])
def test_remote_calls(allocator: dict[str, str]) -> None:
    """TensorPipe asks for the device of a tensor from threads that have no CUDA context."""
    check_all(run_ranks(2, "remote_calls.py", **allocator), "right")


@pytest.mark.parametrize("allocator", [{}, GLAKE], ids=["native", "glake"])
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_training_in_phantom_memory(how: str, allocator: dict[str, str]) -> None:
    phantom = {"GLAKE_SIM_PHANTOM": "1", "GLAKE_SIM_MEMORY": "80GiB", **allocator}
    check_all(run_ranks(2, "training.py", how, **phantom), "trained")


@pytest.mark.parametrize("how", ["ddp", "fsdp1", "fsdp", "fsdp-offload"])
def test_training_in_memory_that_rests(how: str) -> None:
    """Memory is paused, resumed and offloaded between steps. PyTorch's allocator gives the same
    losses."""
    losses = []
    for allocator in ({}, GLAKE):
        ends = run_ranks(2, "resting.py", how, **allocator)
        check_all(ends, "trained")
        losses.append(next(line for line in ends[0][1].splitlines() if line.startswith("losses")))
    assert losses[0] == losses[1]


def test_a_rank_that_dies_is_named() -> None:
    ends = run_ranks(2, "dying.py")
    assert ends[1][0] == DIED
    status, output = ends[0]
    assert status not in (0, DIED)
    assert "rank 1 has died, and rank 0 waits for it in all_reduce of 4 float32 (sum)" in output
