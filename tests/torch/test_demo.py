"""`make demo`: a tiny run from end to end, and what it says when things go wrong."""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("matplotlib", reason="the demo draws with it")

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "benchmarks" / "demo"
TRACE = ROOT / "tests" / "traces" / "gpt-varying.trace.gz"
MODULES = ("demo", "compare", "picture")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def module(monkeypatch):
    """module(name) imports one of the demo's modules. None stays imported after the test."""
    monkeypatch.syspath_prepend(str(DEMO))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


def test_training_is_bit_identical_and_everything_is_written(jit_dir, tmp_path):
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    options = ("--size", "tiny", "--steps", "4", "--capacity", "64MiB", "--seed", "1")
    done = subprocess.run(
        [sys.executable, str(DEMO / "demo.py"), *options, "--out", str(tmp_path / "out")],
        env={
            **clean,
            "GLAKE_JIT_DIR": str(jit_dir),
            "CUDA_VISIBLE_DEVICES": "",
            "REAL_VENV": "none",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "GPU: simulated (no CUDA device found)"
    assert "All 4 losses and the checkpoint at the end are bit-identical" in done.stdout

    losses = json.loads((tmp_path / "out" / "losses.json").read_text())
    stock, glake = losses["stock"], losses["glake"]
    assert losses["identical"] is True
    assert (stock["allocator"], glake["allocator"]) == ("torch", "emulation")
    assert stock["losses"] == glake["losses"] and len(set(stock["losses"])) == 4
    assert all(math.isfinite(loss) for loss in stock["losses"])
    assert stock["checkpoint"] == glake["checkpoint"] and len(stock["checkpoint"]) == 2
    assert len(set(losses["lengths"])) > 1
    assert 0 < glake["peak_live_bytes"] <= glake["peak_physical_bytes"] <= 64 << 20

    policies = json.loads((tmp_path / "out" / "policies.json").read_text())
    assert [row["policy"] for row in policies] == ["native", "expandable", "glake"]
    for row in policies:
        assert row["capacity_bytes"] == 64 << 20
        # The job's set-up before glake.record_trace() holds next to nothing.
        assert row["peak_live_bytes"] == pytest.approx(glake["peak_live_bytes"], rel=0.02)
    trace = (tmp_path / "out" / "job.trace").read_text().splitlines()
    assert sum(line.startswith("s ") for line in trace) == 4
    assert (tmp_path / "out" / "memory.png").read_bytes().startswith(PNG)


def test_a_difference_fails_the_demo_and_is_named(module, monkeypatch, tmp_path):
    demo = module("demo")
    limits = {}

    def run(self, title, data=None, steps=None, trace=False, glake=False, limit=None):
        limits[title] = limit
        last = math.nextafter(2.0, 3.0) if glake else 2.0
        return {
            "losses": [3.0, last],
            "checkpoint": "same",
            "peak_physical_bytes": 1 << 30,
            "trace": str(TRACE),
        }

    monkeypatch.setattr(demo.Setup, "run", run)
    done = CliRunner().invoke(demo.main, ["--out", str(tmp_path), "--steps", "3"])
    assert done.exit_code == 1
    assert "glake changed the training: the loss of step 1 is 2.0 on stock torch" in done.output
    assert json.loads((tmp_path / "losses.json").read_text())["identical"] is False
    granules, rest = divmod(limits["glake"], 2 << 20)
    assert rest == 0 and granules == math.ceil(2541404160 * 1.08 / (2 << 20))  # the demo's rule
    assert (limits["rehearsal"], limits["stock"]) == (None, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"losses": [1.0]}, "2 losses against 1"),
        ({"losses": [1.0, 0.0]}, "the loss of step 1 is -0.0 on stock torch, 0.0 on glake"),
        ({"checkpoint": "b"}, "the checkpoints at the end are not"),
    ],
)
def test_what_counts_as_a_difference(module, change, words):
    stock = {"losses": [1.0, -0.0], "checkpoint": "a"}
    found = module("demo").difference(stock, stock | change)
    assert found is None if words is None else words in found


def test_out_of_memory_is_compared_and_drawn(module, tmp_path):
    compare, picture = module("compare"), module("picture")
    small = 2541404160 * 9 // 10  # below the trace's live bytes, so no policy fits
    outcomes = compare.compare(TRACE, small)
    for each in outcomes:
        assert each.result.oom is not None
        assert each.unlimited.oom is None
        assert each.result.peak_physical_bytes <= small
        assert each.unlimited.peak_physical_bytes > small
        assert each.result.min_capacity_bytes > small
    picture.draw(outcomes, TRACE, tmp_path / "memory.png", "out of memory")
    assert (tmp_path / "memory.png").read_bytes().startswith(PNG)


def test_step_events_are_counted_as_the_replay_counts_them(module, tmp_path):
    trace = tmp_path / "job.trace"
    trace.write_text("# job: x\n\na 1 512 0\ns 0\n  s 1\nf 1\n# end\ns 2\n")
    assert module("picture").step_events(trace) == [1, 2, 4]


def test_a_capacity_that_is_no_size_is_refused(module, tmp_path):
    done = CliRunner().invoke(module("demo").main, ["--capacity", "x", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "--capacity" in done.output and '"400MiB"' in done.output
