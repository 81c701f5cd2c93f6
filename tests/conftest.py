"""Skips tests marked `full` unless TEST_FULL is 1: `make test` leaves them to `make test-all`.

It keeps the names of files with tests marked `proof`, all of which `make proofs` must name.
"""

import gc
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROOF_FILES = pytest.StashKey[set[str]]()


@pytest.fixture(scope="session")
def proof_files(pytestconfig: pytest.Config) -> set[str]:
    """The files, of those that this run collected, with tests marked `proof`."""
    return pytestconfig.stash[PROOF_FILES]


@pytest.fixture(scope="session")
def jit_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers share, so that a session compiles adapters once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jit"


@pytest.hookimpl(tryfirst=True)  # before -m leaves out proofs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    proofs = {item.path for item in items if item.get_closest_marker("proof") is not None}
    config.stash[PROOF_FILES] = {path.relative_to(ROOT).as_posix() for path in proofs}
    if os.environ.get("TEST_FULL") == "1":
        return
    for item in items:
        if item.get_closest_marker("full") is not None:
            item.add_marker(pytest.mark.skip(reason="full width: TEST_FULL=1 (make test-all)"))


def pytest_collection_finish() -> None:
    """Leaves what is there by now out of the tests' garbage collections. torch alone has so many
    objects that each collection would take half a second."""
    gc.collect()
    gc.freeze()
