"""Real training gives the same bits as under torch's own allocator, in ample and tight memory."""

import json
import subprocess
import sys
from typing import Any

import pytest
from gpu_running import ROOT, environment

WORKER = ROOT / "benchmarks" / "gpu" / "worker.py"
LENGTHS = [40, 64, 17, 55, 64, 23, 61, 33, 64, 48]
STEPS = {"do": "steps", "batch": 64, "lengths": LENGTHS}


def train(glake: bool, limit: int | None = None, **variables: str) -> list[dict[str, Any]]:
    """The worker's answers to four orders: limit, setup, and two rounds of steps."""
    orders: list[dict[str, Any]] = [{"do": "limit", "bytes": limit}, {"do": "setup"}, STEPS, STEPS]
    done = subprocess.run(
        [sys.executable, str(WORKER), "cuda", "tiny"],
        input="".join(json.dumps(order) + "\n" for order in orders),
        env=environment(glake, **variables),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == 5 and all(each["ok"] for each in answers), answers
    return answers


@pytest.mark.gpu
@pytest.mark.xdist_group("training")
def test_losses_are_bit_identical() -> None:
    native, ours = train(False), train(True)
    assert ours[0]["glake"] == "adapter"
    for mine, its in zip(ours[3:], native[3:], strict=True):
        assert mine["oom"] is None and len(its["losses"]) == len(LENGTHS)
        assert mine["losses"] == its["losses"]
    peak = native[4]["peak_requested_bytes"]
    tight = train(True, limit=-(-int(1.1 * peak) // (2 << 20)) * (2 << 20))
    for mine, its in zip(tight[3:], native[3:], strict=True):
        assert mine["oom"] is None, mine["oom"]
        assert mine["losses"] == its["losses"]
    assert tight[4]["peak_reserved_bytes"] <= 1.1 * peak + (2 << 20)


@pytest.mark.gpu
@pytest.mark.xdist_group("training")
def test_a_compact_policy_computes_the_same() -> None:
    native, ours = train(False), train(True, GLAKE_POLICY="compact")
    assert [each["losses"] for each in ours[3:]] == [each["losses"] for each in native[3:]]
