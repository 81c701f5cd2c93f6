"""Figures the models are held to, so that a change of a model is noticed.

For the project's own traces the figures are the models' own. For four recorded training jobs they
come from PyTorch's and GMLake's code run over a book-keeping driver; those traces are not in this
repository: RECORDED_TRACES names a folder that has them, and the tests are skipped without.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glake.trace.replay import load_trace, replay

GIB = 1 << 30
MIB = 1 << 20
OWN = Path(__file__).resolve().parents[1] / "traces"
RECORDED = os.environ.get("RECORDED_TRACES")
NEAR = 0.02

# Trace, policy: MiB at peak and calls without limit, MiB of the smallest capacity.
OWN_FIGURES: dict[tuple[str, str], tuple[float, int, float]] = {}

# Trace, policy: GiB at peak without limit, GiB of the smallest capacity.
RECORDED_FIGURES = {
    ("opt-1.3b-LRO-w1", "native"): (142.17, 46.90),
    ("opt-1.3b-LRO-w1", "expandable"): (51.28, 39.16),
    ("opt-1.3b-LRO-w1", "gmlake"): (42.47, 42.47),
    ("opt-1.3b-LRO-w1", "gmlake:64MiB"): (49.45, 44.06),
    ("opt-13b-LR-w4", "native"): (91.85, 62.23),
    ("opt-13b-LR-w4", "expandable"): (59.77, 48.98),
    ("opt-13b-LR-w4", "gmlake"): (54.02, 54.02),
    ("opt-13b-LR-w4", "gmlake:64MiB"): (53.68, 52.64),
    ("vicuna-13b-R-fsdp2-w8", "native"): (45.98, 41.47),
    ("vicuna-13b-R-fsdp2-w8", "expandable"): (44.63, 35.55),
    ("vicuna-13b-R-fsdp2-w8", "gmlake:64MiB"): (42.09, 37.97),
    ("llama3-8b-titan-S-fsdp2-w8", "native"): (82.52, 76.56),
    ("llama3-8b-titan-S-fsdp2-w8", "expandable"): (79.36, 68.94),
    ("llama3-8b-titan-S-fsdp2-w8", "gmlake:64MiB"): (80.40, 74.43),
}


@pytest.mark.parametrize(("name", "policy"), OWN_FIGURES)
def test_own_traces(name, policy):
    trace = load_trace(OWN / f"{name}.trace.gz")
    result = replay(trace, policy, find_min_capacity=True)
    peak, calls, least = OWN_FIGURES[name, policy]
    assert result.peak_physical_bytes / MIB == pytest.approx(peak, abs=0.01)
    assert result.driver_calls == calls
    assert result.min_capacity_bytes is not None
    assert result.min_capacity_bytes / MIB == pytest.approx(least, abs=0.01)


@pytest.mark.skipif(RECORDED is None, reason="RECORDED_TRACES names no folder of recorded jobs")
@pytest.mark.parametrize(("name", "policy"), RECORDED_FIGURES)
def test_recorded_jobs(name, policy):
    assert RECORDED is not None
    trace = load_trace(Path(RECORDED) / f"{name}.trace.gz")
    result = replay(trace, policy, find_min_capacity=True)
    peak, least = RECORDED_FIGURES[name, policy]
    assert result.peak_physical_bytes / GIB == pytest.approx(peak, rel=NEAR)
    assert result.min_capacity_bytes is not None
    assert result.min_capacity_bytes / GIB == pytest.approx(least, rel=NEAR)
    bound = replay(trace, "bound").peak_physical_bytes
    assert bound <= result.min_capacity_bytes
