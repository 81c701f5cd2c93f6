"""Each glake_status of the C interface has its own exception."""

import ast
import re
from pathlib import Path

import pytest

import glake
from glake import errors

HEADER = Path(glake.__file__).parent / "include" / "glake" / "glake.h"


def statuses() -> dict[str, int]:
    listed = re.search(r"enum glake_status \{(.*?)\} glake_status", HEADER.read_text(), re.DOTALL)
    assert listed is not None
    found = re.findall(r"GLAKE_([A-Z_]+) = (\d+)", listed[1])
    return {name: int(value) for name, value in found if name != "OK"}


def test_header_lists_statuses() -> None:
    assert len(statuses()) >= 10


@pytest.mark.parametrize(("name", "value"), statuses().items())
def test_status_has_its_exception(name: str, value: int) -> None:
    error = errors.from_status(value, "what went wrong")
    assert type(error).__name__ == name.title().replace("_", "")
    assert error.status == value and isinstance(error, errors.GlakeError)
    assert str(error) == "what went wrong"


def test_unknown_status_is_still_an_error() -> None:
    assert type(errors.from_status(999, "new")) is errors.GlakeError


def test_exceptions_are_also_the_usual_ones() -> None:
    assert issubclass(errors.OutOfMemory, MemoryError)
    assert issubclass(errors.InvalidArgument, ValueError)
    assert issubclass(errors.UnknownOption, KeyError)


# Exceptions that end a command or a child of `glake plan`. No user catches them.
RAISED = ("Error", "Exception")
ELSEWHERE = {"BadInput", "Refused", "Ended"}


def test_every_exception_is_glakes_and_in_one_module() -> None:
    outside = set()
    for path in Path(glake.__file__).parent.rglob("*.py"):
        if path.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if any(
                hasattr(errors, base) or base.endswith(("Error", "Exception")) for base in bases
            ):
                outside.add(node.name)
    assert outside == ELSEWHERE
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    assert all(issubclass(each, errors.GlakeError) for each in kinds) and len(kinds) > 40
