"""Each mutant's old text is in its file once, and the case that kills it exists."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import mutants  # noqa: E402

ALL = mutants.mutants()
CASES = {
    f"{path.stem}/{case}"
    for path in (ROOT / "tests").rglob("*_test.cpp")
    for case in re.findall(r"^TEST\((\w+)\)", path.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("mutant", ALL, ids=[each.name for each in ALL])
def test_a_mutant_can_be_made_and_killed(mutant: mutants.Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert mutants.edited(text, mutant) != text
    assert f"{mutant.program}/{mutant.case}" in CASES
