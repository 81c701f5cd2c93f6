"""Packages that need only the environment variable, and FSDP2, have the same losses with glake."""

import pytest


@pytest.mark.parametrize("program", ["accelerate_loop", "hf_trainer", "lightning_fit"])
def test_fine_tuning_has_the_same_losses(job, tmp_path, program: str) -> None:
    stock = job(program, tmp_path / "stock", hooks=None)
    ours = job(program, tmp_path / "ours")
    assert ours["losses"] == stock["losses"]
    held = float(ours["stderr"].rpartition("glake held ")[2].partition("%")[0])
    assert held > 95
    assert ours["peak"] > ours["weights"] > 0


def test_fsdp2_has_the_same_losses_and_single_allocations_if_asked(job) -> None:
    stock = job("fsdp2_two_ranks", ranks=2, hooks=None)
    ours = job("fsdp2_two_ranks", ranks=2)
    named = job("fsdp2_two_ranks", ranks=2, hooks="all,fsdp2")
    assert stock["losses"] == ours["losses"] == named["losses"]
    assert ours["contiguous"] == 0 < named["contiguous"]
