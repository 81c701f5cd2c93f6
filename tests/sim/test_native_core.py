"""The C++ tests of the allocator core and of all that is not transfer."""

import pytest
from native_cases import check, items, native

PROGRAMS = [
    name
    for name in native.programs()
    if not name.startswith(("transfer_", "test_")) and name != "conformance"
]


@pytest.mark.parametrize(("program", "case"), items(PROGRAMS))
def test_case(program: str, case: str) -> None:
    check(program, case)
