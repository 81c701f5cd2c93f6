"""Prints where a package looks for virtual memory, read from its source: FOLDER of the package.

That is each file with code, not a comment or a test, that names expandable_segments. Its output for
the packages of docs/integrations.md's table of such checks is
tests/integrations/stored/virtual_memory_checks.txt.
"""

import ast
import sys
from pathlib import Path


def looks(tree: ast.Module) -> bool:
    """Whether a string that is more than a docstring names the setting."""
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and "expandable_segments" in node.value
        and id(node) not in told
        for node in ast.walk(tree)
    )


def main() -> None:
    folder = Path(sys.argv[1])
    for file in sorted(folder.rglob("*.py")):
        place = file.relative_to(folder.parent)
        if {"test", "tests", ".agents"} & set(place.parts):
            continue
        text = file.read_text(errors="replace")
        if "expandable_segments" in text and looks(ast.parse(text)):
            print(place)


if __name__ == "__main__":
    main()
