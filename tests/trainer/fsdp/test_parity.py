"""glake's FSDP beside PyTorch's fully_shard, and its saved state, on 1 to 4 ranks.

It is one file, because one start of some ranks runs all their cases. A second worker of pytest
would start ranks of its own.
"""

import pytest
from cases import CASES, FULL_WIDTH, LOADS, RUNS


def parameters(names):
    """(ranks, case) for each case of `names`. Those of FULL_WIDTH are marked `full`."""
    return [
        pytest.param(
            ranks,
            name,
            id=f"{ranks}-{name}",
            marks=[pytest.mark.full] if (ranks, name) in FULL_WIDTH else [],
        )
        for ranks in RUNS
        for name in RUNS[ranks]
        if name in names
    ]


COMPARED = [name for name, case in CASES.items() if "run" not in case]


@pytest.mark.parametrize(("ranks", "name"), parameters(COMPARED))
def test_ten_steps(results, ranks, name):
    """Ten steps equal ten of fully_shard, on the same model and data."""
    found = results(ranks, name)
    tolerance = CASES[name].get("tolerance", 1e-6)
    assert len(found["ours"]) == 10
    for mine, theirs in zip(found["ours"], found["theirs"], strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance)
    # A step of Adam divides by gradients, so parameters are less alike than gradients.
    limit = CASES[name].get("parameters", 10 * tolerance)
    assert found["gradients"] and max(found["gradients"].values()) <= tolerance
    assert found["parameters"] and max(found["parameters"].values()) <= limit
    assert found["ours"][0] > found["ours"][-1], "it should have learnt something"


@pytest.mark.parametrize(("ranks", "name"), parameters(LOADS))
def test_goes_on_to_the_same_losses(results, ranks, name):
    """State saved by torch.distributed.checkpoint on 2 ranks goes on at 1, 3 and 4."""
    saved = results(2, name.replace("load", "save", 1))
    assert saved["after"] != saved["before"]
    assert results(ranks, name)["after"] == pytest.approx(saved["after"], rel=1e-6)


@pytest.mark.parametrize(("ranks", "name"), [(2, "put"), (2, "put offload"), (3, "put")])
def test_whole_values_are_put_into_shares(results, ranks, name):
    assert results(ranks, name) == {"ours": True, "torch": True}
