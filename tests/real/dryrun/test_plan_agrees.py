"""`glake plan` (models, on torch's CPU build) must agree with `glake dry-run` (PyTorch's own code).

Both run the same small jobs. docs/plan.md says where the two differ, and by how much.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
STEPS = "4"
POLICIES = "native,expandable,glake"
CLOSE_ALLOCATED, CLOSE_RESERVED = 0.01, 0.03  # the most by which they may differ, as a share


def figures(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def both(real_python, tmp_path):
    """both(kind): for each allocator, what the plan says and what the dry run says."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("left out: a plan is recorded by a CPU build of torch, and this is none")

    def run(kind):
        cli = ["-m", "glake.cli"]
        plan = figures(
            [sys.executable, *cli, "plan", "planned:make_step", "-o", f"kind={kind}", "--steps",
             STEPS, "--policy", POLICIES, "--quick", "--json"],
            PROGRAMS,
        )  # fmt: skip
        dry = figures(
            [real_python, *cli, "dry-run", "--memory", "80GiB", "--allocator", POLICIES, "--json",
             PROGRAMS / "planned.py", kind, STEPS],
            tmp_path,
        )  # fmt: skip
        assert {row["outside_bytes"] for row in dry} == {plan["context_bytes"]}
        return {
            row["allocator"]: (found, row)
            for found, row in zip(plan["policies"], dry, strict=True)
            if found["policy"] == row["allocator"]
        }

    return run


@pytest.mark.parametrize("kind", ["perceptron", "fixed", "varying"])
def test_a_plan_says_what_a_dry_run_says(both, kind):
    rows = both(kind)
    assert list(rows) == POLICIES.split(",")
    for name, (plan, dry) in rows.items():
        told = (name, plan, dry)
        assert plan["oom"] is None and dry["oom"] is None, told
        allocated = pytest.approx(plan["peak_live_bytes"], rel=CLOSE_ALLOCATED)
        assert dry["peak_allocated_bytes"] == allocated, told
        reserved = pytest.approx(plan["peak_physical_bytes"], rel=CLOSE_RESERVED)
        assert dry["peak_reserved_bytes"] == reserved, told
