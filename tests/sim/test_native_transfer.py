"""The C++ tests of the transfer engine."""

import pytest
from native_cases import check, items, native

PROGRAMS = [name for name in native.programs() if name.startswith("transfer_")]
BY_HELD_STREAMS = ["transfer_copy_test", "transfer_blocks_test"]


@pytest.mark.parametrize(("program", "case"), items(PROGRAMS))
def test_case(program: str, case: str) -> None:
    check(program, case)


@pytest.mark.parametrize(("program", "case"), items(BY_HELD_STREAMS))
def test_case_by_held_streams(program: str, case: str) -> None:
    check(program, case, GLAKE_COPY_ORDER="held")
