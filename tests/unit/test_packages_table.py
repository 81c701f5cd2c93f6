"""docs/integrations.md: for each letter of the table of packages another table names a test."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Cell = tuple[str, str, str]  # package, column, where it was seen


def rows(text: str, begin: str) -> list[list[str]]:
    """The cells of the first table behind a heading, without the line under its head."""
    lines = text[text.index(begin) :].splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return [table[0], *table[2:]]


PAGE = (ROOT / "docs/integrations.md").read_text()


def letters() -> list[Cell]:
    head, *table = rows(PAGE, "## What works with which package")
    cells = []
    for package, *row in table:
        for column, text in zip(head[1:], row, strict=True):
            assert re.fullmatch(r"[-.]|[GSC]( [GSC])*", text), (package, column, text)
            cells += [(package, column, letter) for letter in text.split() if letter in "GSC"]
    return cells


def named() -> dict[Cell, str]:
    table = rows(PAGE, "## Where each was seen")[1:]
    found = {(package, what, seen): test.strip("`") for package, what, seen, test in table}
    assert len(found) == len(table)
    return found


@functools.cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_each_letter_has_a_test_and_each_test_a_letter() -> None:
    assert sorted(letters()) == sorted(named())


def test_the_readme_says_what_was_seen_on_a_gpu() -> None:
    """The README names each package under the highest letter that it has anywhere."""
    text = " ".join((ROOT / "README.md").read_text().split())
    said = text[text.index("where each was seen.") :]
    parts = said.split("were seen on a GPU;")
    parts = [parts[0], *parts[1].split("with PyTorch's CUDA build on the simulated one;")]
    parts[2] = parts[2].partition("on CPUs")[0]
    for package in dict.fromkeys(package for package, _, _ in letters()):
        seen = {letter for each, _, letter in letters() if each == package}
        place = 0 if "G" in seen else 1 if "S" in seen else 2
        for name in package.replace("glake's ", "").split(", "):
            if name not in ("PEFT", "Accelerate"):
                found = [re.search(rf"\b{re.escape(name)}\b", part) is not None for part in parts]
                assert found == [n == place for n in range(3)], name


def test_the_tests_are_there() -> None:
    for cell, test in named().items():
        file, _, function = test.partition("::")
        assert function.startswith("test_") and function in functions(file), (cell, test)
        assert (cell[2] == "G") == file.startswith("tests/gpu/"), (cell, test)
        of_cuda = file.startswith(("tests/real/", "tests/gpu/")) or cell[2] == "C"
        by_cuda = re.search("(REAL|TITAN|CUDA|CUPY)_PYTHON|real_python", (ROOT / file).read_text())
        assert of_cuda or by_cuda, (cell, test)  # all letters except C need a CUDA build


def test_every_test_that_the_page_names_is_there() -> None:
    for file, function in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE):
        assert (ROOT / file).exists(), file
        assert not function or function in functions(file), (file, function)


def test_each_check_of_other_packages_has_a_row() -> None:
    stored = (ROOT / "tests/integrations/stored/virtual_memory_checks.txt").read_text().splitlines()
    looking = {line for line in stored if not line.startswith("#")}
    table = rows(PAGE, "## Checks for virtual memory")[1:]
    assert {file for who, *_ in table for file in re.findall(r"`(\w+/[\w/]+\.py)`", who)} == looking
    assert all(why and instead for _, why, instead in table)
