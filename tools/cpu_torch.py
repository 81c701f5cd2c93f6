"""Installs PyTorch's CPU build, at the version that the extra `test` pins, for this Python.

This is done before the other requirements are installed. Otherwise the package index would give
torch's CUDA build, several GB that nothing here can use. A torch of that version that is installed
already is left alone.
"""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from requirements import requirements

INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own index of CPU builds


def pinned(pyproject: Path) -> str:
    """The version of torch in the extra `test`."""
    lines = requirements(pyproject, ["test"])
    return next(each for each in lines if each.startswith("torch==")).removeprefix("torch==")


def installed() -> str | None:
    """The version of this Python's torch, without its build ("+cpu"); None: it has none."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return None


def install(wanted: str) -> bool:
    """Installs torch from the index that pip is configured to use, or else from PyTorch's own."""
    pip = [sys.executable, "-m", "pip", "install", f"torch=={wanted}+cpu"]
    sources: list[list[str]] = [[], ["--retries", "1", "--index-url", INDEX]]
    return any(subprocess.run([*pip, *source]).returncode == 0 for source in sources)


if __name__ == "__main__":
    wanted = pinned(Path(__file__).parents[1] / "pyproject.toml")
    if installed() != wanted and not install(wanted):
        raise SystemExit(
            f"PyTorch {wanted}, CPU build, cannot be installed for {sys.executable} (Python "
            f"{sys.version.split()[0]}), neither from pip's configured sources nor from {INDEX}: "
            "name an environment that has it with make VENV=PATH"
        )
