"""Finds names of files that do not exist, in comments, docstrings and pages.

    python tools/named_files.py [FILE ...]

A name is checked if it could be one of this repository:

- `tools/layers.py`: any file, if the name begins with a folder of the root;
- `allocator/stats.py`: a Python file, if it begins with a folder of glake/;
- `heap/search.cpp`: a C or C++ file, if it begins with a folder of glake/csrc/ or simcuda/;
- `search.cpp`: a C or C++ file, in a comment of C or C++.

A name may leave out the first folders of its path. `*` and a word in capitals stand for anything.
Other names, such as torch/cuda/memory.py, belong to other projects. Files that the build makes, or
that a source includes, count as existing. Prints FILE:LINE of each name of a missing file. If there
is one, the exit code is 1.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MADE = ("build", "dist", "results", "__pycache__")  # folders of the root that builds and runs make
C_SOURCES = (".h", ".c", ".cpp")
# The folders that may be left out at the beginning of a name, by the name's end.
BEGIN = {".py": ("glake",), **dict.fromkeys(C_SOURCES, ("glake/csrc", "simcuda"))}
NAME = re.compile(
    r"(?<![\w./~$}>:@+-])((?:[\w.*-]+/)*[\w*-][\w.*-]*"
    r"\.(?:h|c|cpp|py|md|ptx|cmake|toml|json|css|svg|log|sh|yml))(?![\w/*({<-]|\.\w)"
)
C_TEXT = re.compile(
    r'R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(//[^\n]*|/\*(?:.|\n)*?\*/)'
)


@cache
def files() -> frozenset[str]:
    """Every file of the repository, by its path from the root."""
    found = []
    for at, folders, names in os.walk(ROOT):
        place = Path(at).relative_to(ROOT)
        hidden = (
            each for each in folders if each.startswith(".") and each not in (".ci", ".github")
        )
        made = MADE if place == Path() else MADE[-1:]
        for each in [*hidden, *made]:
            if each in folders:
                folders.remove(each)
        found += [str(place / name) for name in names]
    return frozenset(found)


@cache
def known() -> frozenset[str]:
    """All names that exist: files, those that the build makes, and those that sources include."""
    named = {name.removesuffix(".in") for name in files()}
    named.update(re.findall(r"/generated/([\w/.]+)", (ROOT / "CMakeLists.txt").read_text()))
    for name in files():
        if name.endswith(C_SOURCES):
            text = (ROOT / name).read_text()
            named.update(re.findall(r'^\s*#\s*include [<"]([^>"]+)[>"]', text, re.MULTILINE))
    parts = (name.split("/") for name in named)
    return frozenset("/".join(each[at:]) for each in parts for at in range(len(each)))


@cache
def beginnings(end: str) -> frozenset[str]:
    """The folders that a name of this end may begin with."""
    found = set()
    for place in (".", *BEGIN.get(end, ())):
        found |= {path.name for path in (ROOT / place).iterdir() if path.is_dir()}
    return frozenset(found - set(MADE))


def counts(name: str, in_c: bool) -> bool:
    """Whether a name could be one of this repository."""
    end = Path(name).suffix
    first, slash, _ = name.partition("/")
    return first in beginnings(end) if slash else in_c and end in C_SOURCES


def is_there(name: str, beside: Path) -> bool:
    """Whether there is a file of that name."""
    if name in known() or (beside / name).exists():
        return True
    pattern = re.sub("[A-Z]{3,}", "*", name)
    return "*" in pattern and any(fnmatchcase(each, pattern) for each in known())


def texts(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each comment and docstring of a source; for a page, its whole text."""
    if path.suffix in C_SOURCES:
        for found in C_TEXT.finditer(source):
            if found[1] is not None:
                yield source.count("\n", 0, found.start()) + 1, found[1]
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield node.lineno, str(node.value.value)
    elif path.suffix == ".md":
        yield 1, source
    else:
        for line, text in enumerate(source.splitlines(), 1):
            yield line, text.partition("#")[2]


def missing(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each file that `path` names and that does not exist."""
    for line, text in texts(path, path.read_text(encoding="utf-8")):
        for found in NAME.finditer(text):
            name = found[1]
            if counts(name, path.suffix in C_SOURCES) and not is_there(name, path.parent):
                yield line + text.count("\n", 0, found.start()), name


def is_read(name: str) -> bool:
    """Whether the names in a file are checked."""
    path = Path(name)
    commented = (*C_SOURCES, ".py", ".md", ".toml", ".cmake", ".yml")
    return path.suffix in commented or path.name in ("Makefile", "CMakeLists.txt")


def main(names: list[str]) -> int:
    """Prints the names of missing files, in these files or in all."""
    chosen = [Path(name).resolve() for name in names]
    wrong = 0
    for path in chosen or [ROOT / name for name in sorted(files()) if is_read(name)]:
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        for line, name in missing(path):
            print(f"{shown}:{line}: there is no {name}")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
