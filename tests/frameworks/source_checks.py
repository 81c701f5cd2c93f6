"""Prints where a package looks for virtual memory, read from its source: FOLDER of the package.

It prints the files whose code names expandable_segments. Comments and tests do not count.
tests/integrations/stored/virtual_memory_checks.txt has the output for the packages that
docs/integrations.md lists in its table of such checks.
"""

import ast
import sys
from pathlib import Path


def looks(tree: ast.Module) -> bool:
    """Whether a string that is no docstring names the setting."""
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
