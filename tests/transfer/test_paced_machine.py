"""Processes of one simulated machine with one clock and one set of links (GLAKE_SIM_PACE)."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240
PROGRAMS = Path(__file__).parent / "programs"


def environment(machine: str, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    return {
        **clean,
        "PYTHONPATH": str(ROOT),
        "GLAKE_DRIVER": "sim:dgx_a100",
        "GLAKE_SIM_MEMORY": "64MiB",
        "GLAKE_SIM_MACHINE": machine,
        "GLAKE_SIM_PACE": "500",
        "GLAKE_SIM_VISIBLE_DEVICES": "1",
        **more,
    }


def start(name: str, machine: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, PROGRAMS / name],
        env=environment(machine, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: "subprocess.Popen[str]") -> list[Any]:
    assert process.stdout is not None
    found: list[Any] = json.loads(process.stdout.readline())
    return found


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_two_processes_have_one_link_between_them() -> None:
    """GPUs 0 and 1 of a DGX A100 share the uplink of their switch. Together they load no faster
    than it, however late one of the processes looks."""
    from glake.transfer import topology

    rate = topology.from_preset("dgx_a100").platform.rate("s0", "u0")
    assert rate is not None
    machine = f"paced-{uuid.uuid4().hex[:12]}"
    both = [start("loader.py", machine, CUDA_VISIBLE_DEVICES=gpu) for gpu in ("0", "1")]
    try:
        for process in both:
            assert answer(process) == [1]
        for process in both:
            go(process)
        found = [answer(process) for process in both]
        window = max(to for _, to, _ in found) - min(began for began, _, _ in found)
        assert sum(size for _, _, size in found) <= rate * window * (1 + 1e-6)
        for process in both:
            go(process)
            assert process.wait(PATIENCE) == 0
    finally:
        for process in both:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"GLAKE_SIM_MACHINE": ""}, "option machine"),
        ({"GLAKE_SIM_COMPLETION": "polled"}, "completion instant"),
        ({"GLAKE_SIM_SCHEDULE": "threaded"}, "schedule lazy"),
        ({"CUDA_VISIBLE_DEVICES": "9"}, "CUDA_VISIBLE_DEVICES=9"),
    ],
)
def test_what_does_not_go_together_is_refused(more: dict[str, str], named: str) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAMS / "devices.py"],
        env=environment(f"paced-{uuid.uuid4().hex[:12]}", **more),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode != 0
    assert named in done.stderr
