"""Builds and runs the C++ test programs: the conformance suite and the core's own tests."""

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native", ROOT / "tools" / "native.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = load_tool()


@pytest.fixture(scope="module")
def binaries() -> Path:
    """The programs' directory; a failing build fails every test here."""
    werror = "GLAKE_WERROR=ON" in os.environ.get("CMAKE_ARGS", "")
    return native.build(ROOT / "build" / "tests", werror=werror)


def test_there_are_programs() -> None:
    assert "conformance" in native.programs()


@pytest.mark.parametrize("name", native.programs())
def test_program(binaries: Path, name: str) -> None:
    run(binaries, name)


@pytest.mark.parametrize("name", ["transfer_copy_test", "transfer_blocks_test"])
def test_copies_by_held_streams(binaries: Path, name: str) -> None:
    run(binaries, name, GLAKE_COPY_ORDER="held")


def run(binaries: Path, name: str, **settings: str) -> None:
    done = subprocess.run(
        [str(binaries / name)],
        env=native.environment() | {"GLAKE_DRIVER": "sim", **settings},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{name} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
