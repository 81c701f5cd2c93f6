"""Ten steps of glake's FSDP equal ten of PyTorch's fully_shard, on the same model and data."""

import pytest
from cases import CASES, RUNS

COMPARED = [(ranks, name) for ranks in RUNS for name in RUNS[ranks] if "run" not in CASES[name]]


@pytest.mark.parametrize(("ranks", "name"), COMPARED, ids=[f"{n}-{name}" for n, name in COMPARED])
def test_ten_steps(results, ranks, name):
    found = results(ranks, name)
    tolerance = CASES[name].get("tolerance", 1e-6)
    assert len(found["ours"]) == 10
    for mine, theirs in zip(found["ours"], found["theirs"], strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance)
    # A step of Adam divides by gradients, so that parameters are less alike than gradients.
    limit = CASES[name].get("parameters", 10 * tolerance)
    assert found["gradients"] and max(found["gradients"].values()) <= tolerance
    assert found["parameters"] and max(found["parameters"].values()) <= limit
    assert found["ours"][0] > found["ours"][-1], "it should have learnt something"
