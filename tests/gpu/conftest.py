"""The outcomes of the programs' checks. Each program runs once a session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_running import run_checks


@pytest.fixture(scope="session")
def results() -> Callable[[Path], dict[str, dict[str, Any]]]:
    """The outcome of each check of a program. If the program dies, only one check is lost."""
    known: dict[Path, dict[str, dict[str, Any]]] = {}

    def results(program: Path) -> dict[str, dict[str, Any]]:
        if program not in known:
            known[program] = run_checks(program)
        return known[program]

    return results
