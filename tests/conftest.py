"""Tests marked `full` are skipped unless TEST_FULL is 1: `make test` leaves them to test-all."""

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TEST_FULL") == "1":
        return
    for item in items:
        if item.get_closest_marker("full") is not None:
            item.add_marker(pytest.mark.skip(reason="full width: TEST_FULL=1 (make test-all)"))
