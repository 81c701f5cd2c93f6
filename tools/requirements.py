"""Prints the project's requirements, one per line, for `pip install -r`.

Usage: requirements.py [EXTRA...]: the run-time dependencies, then each named extra's.
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """The dependencies of the project and of its `extras`. KeyError: no such extra."""
    project = tomllib.loads(pyproject.read_text())["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return lines


if __name__ == "__main__":
    print("\n".join(requirements(Path(__file__).parents[1] / "pyproject.toml", sys.argv[1:])))
