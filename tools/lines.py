"""Prints the length of each folder of a package: the lines of code, and all lines.

    lines.py FOLDER [--most N]

Blank lines, comments and docstrings are no lines of code. With --most the exit status is 1 if there
are more than N lines of code.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Lines of a Python file that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and ast.get_docstring(node, clean=False) is not None:
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def main() -> int:
    """Prints a table of the folders. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int)
    options = parser.parse_args()
    code, all_ = Counter[str](), Counter[str]()
    for path in sorted(options.folder.rglob("*.py")):
        text, place = path.read_text("utf-8"), str(path.parent)
        code[place] += code_lines(text)
        all_[place] += text.count("\n")
    for place in sorted(code):
        print(f"{place:32} {code[place]:6,} {all_[place]:6,}")
    print(f"{'total':32} {code.total():6,} {all_.total():6,}")
    if options.most is not None and code.total() > options.most:
        print(f"{options.folder}: {code.total()} lines of code, and {options.most} are the most")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
