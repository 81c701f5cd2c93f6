"""Finds programs that are held in strings of tests/ and tools/, where no linter reads them.

    python tools/string_programs.py [FILE ...]

A program is a text of several lines, or with a `;`, that is Python with an import, a definition,
a call or an assignment; C or C++; or a script that begins with `#!`. It belongs in a file, which
is run: tests/SUITE/programs/NAME.py. A single statement stays, as in `python -c "import glake"`;
so do docstrings. Prints FILE:LINE of each and exits 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests", "tools")
# What may stay, by its file and how its text begins, with the reason.
MAY = {
    "tools/option_table.py: // Generated": "a header with places for what it is generated from",
    "tests/intercept/test_intercept.py: int _value_(void)": "made of the names in a header",
    "tests/trainer/unit/test_configurable.py: name = 'a'": "TOML",
    "tests/trainer/unit/test_huggingface.py: model_type = 'bert'; known": "words of an error",
    "tests/real/programs/compiled_at_run_time.py: template <typename T>": "torch compiles the text",
}
# What stands for a value that is put into the text.
VALUE = "_value_"
C = re.compile(r"^\s*#\s*include\b|^(?:[\w:<>]+[ *&]+)+[\w:]+\([^()\n]*\)\s*\{", flags=re.MULTILINE)
IMPORTS = (ast.Import, ast.ImportFrom)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PERCENT = re.compile(r"%\(\w+\)[srd]|%[srd]")


def text_of(node: ast.AST) -> str | None:
    """The text that an expression makes, VALUE for what only its run knows; None: no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) or VALUE for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None and right is None else (left or VALUE) + (right or VALUE)
    return None


def is_python(text: str) -> bool:
    """Whether a text is Python that does something, with % and its kind as values."""
    for code in (text, PERCENT.sub(VALUE, text)):
        try:
            nodes = list(ast.walk(ast.parse(code)))
        except (SyntaxError, ValueError):
            continue
        does = (*IMPORTS, *DEFINITIONS, ast.Assign, ast.AugAssign)
        calls = (isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) for each in nodes)
        return any(isinstance(each, does) for each in nodes) or any(calls)
    return False


def is_program(text: str) -> bool:
    """Whether a text is a program of more than one statement."""
    text = textwrap.dedent(text).strip()
    if "\n" not in text and ";" not in text:
        return False
    return text.startswith("#!") or C.search(text) is not None or is_python(text)


def programs(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and first line of each program in the strings below a node, docstrings left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        text = text_of(child)
        if text is not None and isinstance(child, ast.expr) and is_program(text):
            yield child.lineno, text.strip().splitlines()[0]
        else:
            yield from programs(child)


def main(names: list[str]) -> int:
    """Prints the programs of these files, or of all, and what MAY no longer needs."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    chosen = [Path(name).resolve() for name in names] or files
    wrong: list[str] = []
    kept: set[str] = set()
    for path in chosen:
        name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
        for line, first in programs(ast.parse(path.read_text(encoding="utf-8"))):
            if may := [each for each in MAY if f"{name}: {first}".startswith(each)]:
                kept.update(may)
            else:
                wrong.append(f"{name}:{line}: a program in a string: {first[:60]}")
    if not names:
        wrong += [f"MAY has what is not there: {each}" for each in MAY if each not in kept]
    for each in wrong:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
