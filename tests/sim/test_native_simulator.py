"""The C++ tests of the simulated driver, its runtime and NCCL."""

from pathlib import Path

import pytest
from native_cases import WHOLE, called, cases, check, items, native

FOUND = Path(__file__).parents[1] / "fuzz" / "found"
PROGRAMS = [name for name in native.programs() if name.startswith(("test_", "conformance"))]


@pytest.mark.parametrize(("program", "case"), items(PROGRAMS))
def test_case(program: str, case: str) -> None:
    check(program, case)


def test_every_program_is_in_one_of_these_files() -> None:
    from test_native_core import PROGRAMS as CORE
    from test_native_transfer import PROGRAMS as TRANSFER

    assert sorted([*PROGRAMS, *CORE, *TRANSFER]) == sorted(native.programs())
    assert "conformance" in PROGRAMS and "arena_test" in CORE


@pytest.mark.parametrize("program", [name for name in native.programs() if cases(name) != [WHOLE]])
def test_listed_cases_are_those_of_the_source(program: str) -> None:
    status, text = called(program, "--list")
    assert status == 0
    assert sorted(text.splitlines()) == sorted(cases(program))


@pytest.mark.parametrize("found", sorted(FOUND.glob("*.bin")), ids=lambda path: path.stem)
def test_what_fuzzing_found_stays_mended(found: Path) -> None:
    status, text = called("core_fuzz", str(found))
    assert status == 0, text


def test_filter_chooses_cases() -> None:
    status, text = called("arena_test", "--filter", "tickets*")
    assert status == 0
    assert "tickets_of_neighbours: ok" in text
    assert "1 passed" in text
    assert "random_programs" not in text


def test_filter_that_no_case_matches_is_an_error() -> None:
    status, text = called("arena_test", "--filter", "none_of_them")
    assert status == 2
    assert "none_of_them" in text
