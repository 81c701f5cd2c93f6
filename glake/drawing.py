"""Loads matplotlib so that it writes nothing to a home without write access, and does not warn.

matplotlib caches the system's fonts in folders under the home, and so does fontconfig, which
matplotlib uses. If these folders cannot be written, both warn and go on working.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDERS = (("XDG_CONFIG_HOME", "~/.config"), ("XDG_CACHE_HOME", "~/.cache"))


def load() -> None:
    """Imports the modules that figures need. Raises ImportError as `import` does."""
    if "matplotlib" in sys.modules or "MPLCONFIGDIR" in os.environ or _home_takes_files():
        import matplotlib.figure  # noqa: F401

        return
    # matplotlib reads the variables as it is imported and never again.
    with _variables("MPLCONFIGDIR", "XDG_CACHE_HOME", value=_scratch().name):
        import matplotlib.figure  # noqa: F401


def _home_takes_files() -> bool:
    return all(
        _takes_files(Path(os.environ.get(variable) or default).expanduser() / "matplotlib")
        for variable, default in _FOLDERS
    )


def _takes_files(folder: Path) -> bool:
    """Whether the folder can be written, or made and then written."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


@functools.cache  # kept, and removed as the process exits
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="glake-matplotlib-")


@contextmanager
def _variables(*names: str, value: str) -> Iterator[None]:
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(dict.fromkeys(names, value))
    try:
        yield
    finally:
        for name, text in before.items():
            del os.environ[name]
            if text is not None:
                os.environ[name] = text
