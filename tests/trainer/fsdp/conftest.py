"""Ranks as processes. One start runs many cases, because torch starts more slowly than a case."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cases import FULL_WIDTH, RUNS

HERE = Path(__file__).parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(count, names, directory, checkpoints, limit=900):
    """Runs rank.py on `count` ranks, and returns what each one wrote. Warnings of deprecated calls
    are errors.

    If a rank fails, raises AssertionError with its output.
    """
    output = directory / f"ranks{count}"
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(count),
        "FSDP_CHECKPOINTS": str(checkpoints),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parents[2]),
        "PYTHONWARNINGS": "error::FutureWarning,error::DeprecationWarning",
    }
    command = [sys.executable, str(HERE / "rank.py"), str(output), *names]
    logs = [directory / f"log{count}.{rank}" for rank in range(count)]
    processes = []
    for rank, log in enumerate(logs):
        with open(log, "w") as file:
            processes.append(
                subprocess.Popen(
                    command, env={**environment, "RANK": str(rank)}, stdout=file, stderr=file
                )
            )
    try:
        codes = [process.wait(limit) for process in processes]
    finally:
        for process in processes:
            process.kill()
    text = "\n".join(log.read_text()[-3000:] for log in logs)
    assert codes == [0] * count, text
    return [json.loads(Path(f"{output}.{rank}").read_text()) for rank in range(count)]


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """(ranks, case) -> the result of rank 0. All cases of a number of ranks run in one start."""
    known = {}
    checkpoints = tmp_path_factory.mktemp("checkpoints")

    def of(count, name):
        if name.startswith("load"):
            of(2, name.replace("load", "save", 1))
        if count not in known:
            directory = tmp_path_factory.mktemp(f"fsdp{count}")
            full = os.environ.get("TEST_FULL") == "1"
            names = [case for case in RUNS[count] if full or (count, case) not in FULL_WIDTH]
            known[count] = run_ranks(count, names, directory, checkpoints)[0]
        found = known[count].get(name, {"error": "a case before it failed"})
        assert "error" not in found, found["error"]
        return found

    return of
