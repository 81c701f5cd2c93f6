"""Finds programs that are held in strings, where no linter reads them.

    python tools/string_programs.py [FILE ...]

A program is a text of several lines, or with a `;`, that is one of these: Python with a statement
that does something; C, C++ or PTX; several commands of CMake; a script that begins with `#!`, or
has a loop, a condition or `set -e` of a shell. The text may be bytes, a join of lines, or have
places for values. A program belongs in a file, which is run: tests/SUITE/programs/NAME.py. A single
statement may stay, as in `python -c "import glake"`, and so may docstrings. Other languages are not
found, nor is a text of shell commands alone. Prints FILE:LINE of each program. If there is one, the
exit code is 1.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "examples", "tests", "tools")
# Texts that may stay: "FILE: BEGINNING OF THE TEXT" -> the reason.
MAY = {
    "examples/dry_run.py: import torch": "an example is one file, which a reader can copy",
    "examples/record_and_replay.py: import glake, torch": "likewise",
    "tools/option_table.py: struct _value_": "made of the options' words",
    "tools/option_table.py: // Generated": "a header with places for what it is generated from",
    "tests/intercept/test_intercept.py: int _value_(void)": "made of the names in a header",
    "tests/trainer/unit/test_configurable.py: name = 'a'": "TOML",
    "tests/trainer/unit/test_huggingface.py: model_type = 'bert'; known": "words of an error",
    "tests/real/programs/compiled_at_run_time.py: template <typename T>": "torch compiles the text",
}
# The word in place of a value that is put into the text.
VALUE = "_value_"
C = re.compile(
    r"^\s*#\s*include\b|^\s*(?:typedef )?(?:struct|union|enum|class) \w+ \{"
    r"|^(?:[\w:<>]+[ *&]+)+[\w:]+\([^();{}]*\)\s*\{",
    flags=re.MULTILINE,
)
SHELL = re.compile(
    r"^\s*(?:set -[a-z]+|for \w+ in .*;\s*do|(?:if|while|until) .*;\s*(?:then|do))\b",
    flags=re.MULTILINE,
)
CMAKE = re.compile(
    r"^\s*(?:cmake_minimum_required|project|find_package|include|set|add_\w+|target_\w+|install)"
    r"\([^()]*\)$",
    flags=re.MULTILINE,
)
PTX = re.compile(r"^\s*\.(?:version \d|target sm_|(?:visible )?\.?entry )", flags=re.MULTILINE)
# Nodes of Python that do something. A name alone, or a name with a type, could be ordinary text.
DOES = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign,
    ast.AugAssign, ast.For, ast.While, ast.With, ast.Try, ast.Raise, ast.Assert,
)  # fmt: skip
# Places for values, as in texts for %, str.format and string.Template.
PLACES = (re.compile(r"%\(\w+\)[srd]|%[srd]"), re.compile(r"\{\w*\}|\$\{\w+\}|\$\w+"))


def text_of(node: ast.AST) -> str | None:
    """The text that an expression makes, with VALUE in place of values that only a run knows. None:
    the expression makes no string."""
    if isinstance(node, ast.Constant):
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        return value if isinstance(value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) or VALUE for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None and right is None else (left or VALUE) + (right or VALUE)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _joined(node.func, node.args)
    return None


def _joined(function: ast.Attribute, given: list[ast.expr]) -> str | None:
    """The text that "separator".join([...]) makes, if its list is one of texts."""
    between = text_of(function.value) if function.attr == "join" else None
    if between is None or len(given) != 1 or not isinstance(given[0], ast.List | ast.Tuple):
        return None
    return between.join(text_of(each) or VALUE for each in given[0].elts)


def is_python(text: str) -> bool:
    """Whether a text is Python that does something, with the places for values filled."""
    for places in ((), PLACES[:1], PLACES[1:], PLACES):
        code = text
        for place in places:
            code = place.sub(VALUE, code)
        try:
            nodes = list(ast.walk(ast.parse(code)))
        except (SyntaxError, ValueError):
            continue
        calls = (isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) for each in nodes)
        return any(isinstance(each, DOES) for each in nodes) or any(calls)
    return False


def is_program(text: str) -> bool:
    """Whether a text is a program of more than one statement."""
    text = textwrap.dedent(text).strip()
    if "\n" not in text and ";" not in text:
        return False
    if text.startswith("#!") or any(each.search(text) for each in (C, SHELL, PTX)):
        return True
    return len(CMAKE.findall(text)) > 1 or is_python(text)


def programs(node: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, first line of the text) of each program in the strings below a node, except
    docstrings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        text = text_of(child)
        if text is not None and isinstance(child, ast.expr) and is_program(text):
            yield child.lineno, text.strip().splitlines()[0]
        else:
            yield from programs(child)


def main(names: list[str]) -> int:
    """Prints the programs in these files or in all, and the entries of MAY that no text needs."""
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
