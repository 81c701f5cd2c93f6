"""Megatron-core's GPT: the same losses with glake's hook, and what it carried."""

import pytest


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_gpt_has_the_same_losses(job, tp: int, pp: int) -> None:
    stock = job("megatron_gpt", tp, pp, ranks=tp * pp, hooks=None)
    hooked = job("megatron_gpt", tp, pp, ranks=tp * pp)
    assert hooked["losses"] == stock["losses"]
    assert "RuntimeWarning" not in hooked["stderr"]
    assert hooked["back"]  # an activation went to pinned memory and came back through the engine
    assert hooked["copies"] == 2 * hooked["away"]
    first, second, third = hooked["contiguous"]
    assert 0 < first < second == third  # a longer buffer is made once


def test_what_is_not_allowed_stays(job) -> None:
    assert job("megatron_gpt", 1, 1, ranks=1, hooks="cupy")["contiguous"] == [0, 0, 0]
