"""Each place that tests/moved.toml names exists: the file, and the test in it."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
CASE = re.compile(r"^TEST\((\w+)\)", re.MULTILINE)
ROW = re.compile(r"(?:^\s*|argv,\s*\{)\s*\{\s*\"([^\"]+)\",\s*[\w\[]", re.MULTILINE)
MOVED: dict[str, Any] = tomllib.loads((ROOT / "tests" / "moved.toml").read_text())


def names_in(file: str) -> set[str]:
    """Names of a file's tests: functions in Python, cases in C++ by macro or as rows of a table."""
    text = (ROOT / file).read_text()
    if not file.endswith(".py"):
        return {*CASE.findall(text), *ROW.findall(text)}
    found = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return {node.name for node in found if node.name.startswith("test")}


@pytest.mark.parametrize("folder", MOVED["same"])
def test_what_stayed_is_there(folder: str) -> None:
    for name, count in MOVED["same"][folder].items():
        assert count > 0 and len(names_in(f"{folder}/{name}")) >= count, f"{folder}/{name}"


def test_what_was_inline_has_cases() -> None:
    for program, cases in MOVED["inline"].items():
        assert cases and set(cases) <= names_in(program), program
    for program in MOVED["whole"]["programs"]:
        assert "int main(" in (ROOT / program).read_text()


def test_what_was_moved_or_replaced_is_at_the_named_place() -> None:
    replaced = {old: entry["by"] for old, entry in MOVED["gone"].items() if entry["why"]}
    assert set(replaced) == set(MOVED["gone"])
    for old, places in (MOVED["moved"] | replaced).items():
        assert places, old
        for place in places:
            file, name = place.split("::")
            assert name in names_in(file), f"{old} is said to be at {place}"
        file, name = old.split(",")[0].split("::")
        assert not (ROOT / file).exists() or name not in names_in(file), f"{old} is still there"


def test_no_old_test_is_named_twice() -> None:
    assert not set(MOVED["moved"]) & set(MOVED["gone"])
