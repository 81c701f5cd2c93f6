"""Sharded state, saved by torch.distributed.checkpoint on 2 ranks, goes on at 1, 3 and 4."""

import pytest
from cases import LOADS, RUNS

LOADED = [(ranks, name) for ranks in RUNS for name in RUNS[ranks] if name in LOADS]


@pytest.mark.parametrize(("ranks", "name"), LOADED, ids=[f"{n}-{name}" for n, name in LOADED])
def test_goes_on_to_the_same_losses(results, ranks, name):
    saved = results(2, name.replace("load", "save", 1))
    assert saved["after"] != saved["before"]
    assert results(ranks, name)["after"] == pytest.approx(saved["after"], rel=1e-6)


@pytest.mark.parametrize(("ranks", "name"), [(2, "put"), (2, "put offload"), (3, "put")])
def test_whole_values_are_put_into_shares(results, ranks, name):
    assert results(ranks, name) == {"ours": True, "torch": True}
