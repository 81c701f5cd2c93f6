"""Skips tests marked `full` unless TEST_FULL is 1. `make test` leaves them to `make test-all`."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def jit_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share, so that a session compiles adapters once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jit"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TEST_FULL") == "1":
        return
    for item in items:
        if item.get_closest_marker("full") is not None:
            item.add_marker(pytest.mark.skip(reason="full width: TEST_FULL=1 (make test-all)"))
