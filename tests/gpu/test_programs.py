"""Each check of programs/*.py is a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_running import PROGRAMS_WITH_CHECKS, checks_of

CASES = [
    pytest.param(program, check, id=f"{program.stem}-{check.removeprefix('check_')}",
                 marks=pytest.mark.xdist_group(program.stem))
    for program in PROGRAMS_WITH_CHECKS
    for check in checks_of(program)
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("program", "check"), CASES)
def test_check(
    results: Callable[[Path], dict[str, dict[str, Any]]], program: Path, check: str
) -> None:
    outcome = results(program)[check]
    if outcome["status"] == "skipped":
        pytest.skip(outcome["text"])
    assert outcome["status"] == "passed", outcome["text"]
