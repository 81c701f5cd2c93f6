"""Every public name says what it takes and raises, and its types say what fits."""

import ast
import importlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glake import errors

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import docs_pages  # noqa: E402

MODULES = sorted(docs_pages.MODULES.keys() - {"glake.typing"})  # it has only aliases and protocols
# Classes of objects that calls return. Users do not call their constructors, so only their
# attributes are described.
RETURNED = {
    "glake.Buffer", "glake.Headroom", "glake.Region", "glake.VirtualBuffer", "glake.dryrun.DryRun",
    "glake.dryrun.Refusal", "glake.metrics.Server", "glake.trace.Job",
    "glake.trace.MemoryPlan", "glake.trace.replay.DriverTime", "glake.trace.replay.Holder",
    "glake.trace.replay.Layout", "glake.trace.replay.LayoutBlock",
    "glake.trace.replay.LayoutSegment", "glake.trace.replay.Exhaustion",
    "glake.trace.replay.ReplayResult", "glake.trace.replay.StepCost",
    "glake.trace.replay.Timeline", "glake.trainer.Outcome", "glake.transfer.FileTransfer",
    "glake.transfer.NodeTransfer", "glake.transfer.Peer", "glake.transfer.Plan",
    "glake.transfer.Registration", "glake.transfer.Result", "glake.transfer.Transfer",
}  # fmt: skip


def _in_docs() -> Iterator[tuple[str, str]]:
    """(module, name) of all that pages and examples import from glake, or call in its modules."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        found = re.findall(r"^\s*from (glake[\w.]*) import (\w+(?:, \w+)*)$", text, re.MULTILINE)
        for module, name in [
            (module, name) for module, names in found for name in names.split(", ")
        ]:
            if not (ROOT / module.replace(".", "/") / f"{name}.py").exists():
                yield module, name
            else:
                for called in re.findall(rf"(?<![\w.]){name}\.(\w+)\(", text):
                    yield f"{module}.{name}", called


def _public() -> Iterator[tuple[str, Any]]:
    names = {
        (module, name) for module in MODULES for name in importlib.import_module(module).__all__
    }
    for module, name in sorted(names | set(_in_docs())):
        if not name.startswith("_"):
            yield f"{module}.{name}", getattr(importlib.import_module(module), name)


def _function(found: Any) -> Callable[..., Any] | None:
    if isinstance(found, property):
        return found.fget
    found = getattr(found, "__func__", found)  # the function of a class method
    return found if isinstance(found, types.FunctionType) else None


def _methods(name: str, kind: type) -> Iterator[tuple[str, type, Callable[..., Any]]]:
    """Public methods and properties, and the constructor if callers use it."""
    for base in kind.__mro__:
        if not base.__module__.startswith("glake"):
            continue
        for key, found in vars(base).items():
            function = _function(found)
            if function is not None and not key.startswith("_"):
                yield f"{name}.{key}", kind, function


CLASSES = [
    (name, found)
    for name, found in _public()
    if isinstance(found, type) and not issubclass(found, Exception)
]
FUNCTIONS = [(name, found) for name, found in _public() if isinstance(found, types.FunctionType)]
METHODS = [each for name, kind in CLASSES for each in _methods(name, kind)]
CALLS = [(name, found, inspect.getdoc(found)) for name, found in FUNCTIONS] + [
    (name, function, inspect.getdoc(getattr(kind, name.rpartition(".")[2])))
    for name, kind, function in METHODS
]
CONSTRUCTORS = [
    (name, kind) for name, kind in CLASSES if name not in RETURNED and "__init__" in vars(kind)
]


def _arguments(function: Callable[..., Any]) -> set[str]:
    return {name for name in inspect.signature(function).parameters if name not in ("self", "cls")}


def _section(doc: str, title: str) -> str:
    found = re.search(rf"^{title}:\n((?:[ ]+.*\n|\n)+)", doc + "\n", re.MULTILINE)
    return textwrap.dedent(found[1]) if found else ""


def _items(section: str) -> set[str]:
    """The names before the colons: a and b in "a, b: both"."""
    heads = re.findall(r"^(\w[\w, ]*):", section, re.MULTILINE)
    return {name.strip() for head in heads for name in head.split(",")}


def _raised(function: Callable[..., Any]) -> set[str]:
    """Exceptions that the function's own lines raise by name."""
    if function.__code__.co_filename.startswith("<"):  # a dataclass made it
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raised = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise))
    calls = (node.func for node in raised if isinstance(node, ast.Call))
    return {node.id for node in calls if isinstance(node, ast.Name) and node.id in errors.__all__}


def _lacks(name: str, doc: str | None, arguments: set[str], raised: set[str]) -> list[str]:
    if not doc:
        return [f"{name} has no docstring"]
    told = _items(_section(doc, "Args"))
    wrong = [f"{name}: Args lacks {each}" for each in sorted(arguments - told)]
    wrong += [f"{name}: Args has {each}, no argument" for each in sorted(told - arguments)]
    said = _items(_section(doc, "Raises"))
    wrong += [f"{name}: Raises has {each}, no error of glake's" for each in said - {*dir(errors)}]
    kinds = [getattr(errors, each) for each in said if hasattr(errors, each)]
    for each in sorted(raised):
        if not any(issubclass(getattr(errors, each), kind) for kind in kinds):
            wrong.append(f"{name}: Raises lacks {each}")
    return wrong


def test_each_name_is_documented() -> None:
    for name, found in _public():
        if isinstance(found, type):
            assert "__doc__" in vars(found) and found.__doc__, name
        elif callable(found):
            assert inspect.getdoc(found), name


def test_each_call_says_what_it_takes_and_raises() -> None:
    wrong = [
        line
        for name, function, doc in CALLS
        for line in _lacks(name, doc, _arguments(function), _raised(function))
    ]
    for name, kind in CONSTRUCTORS:
        constructor = vars(kind)["__init__"]
        wrong += _lacks(name, inspect.getdoc(kind), _arguments(constructor), _raised(constructor))
    assert not wrong, "\n".join(wrong)


def test_each_object_that_is_returned_describes_its_fields() -> None:
    for name, kind in CLASSES:
        if name in RETURNED and hasattr(kind, "__dataclass_fields__"):
            told = _items(_section(inspect.getdoc(kind) or "", "Attributes"))
            fields = {field for field in kind.__dataclass_fields__ if not field.startswith("_")}
            assert told == fields, name


def test_no_signature_says_any() -> None:
    calls = [(name, function) for name, function, _ in CALLS]
    calls += [(name, vars(kind)["__init__"]) for name, kind in CONSTRUCTORS]
    calls += [
        (f"{name}.{key}", function)
        for name, kind in CLASSES
        for base in kind.__mro__
        if base.__module__.startswith("glake")
        for key, found in vars(base).items()
        if key.startswith("__")
        and (function := _function(found)) is not None
        and function.__module__.startswith("glake")
        and key != "__init__"  # of an object that calls return, it is not called
    ]
    said = [
        name
        for name, function in calls
        for text in function.__annotations__.values()
        if re.search(r"\bAny\b", str(text))
    ]
    said += [
        f"{name}.{field}"
        for name, kind in CLASSES
        for field, text in getattr(kind, "__annotations__", {}).items()
        if not field.startswith("_") and re.search(r"\bAny\b", str(text))
    ]
    assert not said


def test_the_errors_are_all_there() -> None:
    made = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert made == set(errors.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.GlakeError)


@pytest.mark.parametrize(
    ("doc", "wrong"),
    [
        (None, ["f has no docstring"]),
        ("Does it.", ["f: Args lacks a", "f: Raises lacks OutOfMemory"]),
        ("Does it.\n\nArgs:\n    b: c.\n\nRaises:\n    GlakeError: d.",
         ["f: Args lacks a", "f: Args has b, no argument"]),
        ("Does it.\n\nArgs:\n    a: b:\n        c: d.\n\nRaises:\n    OutOfMemory: e.", []),
    ],
)  # fmt: skip
def test_the_check_finds_what_is_missing(doc: str | None, wrong: list[str]) -> None:
    assert _lacks("f", doc, {"a"}, {"OutOfMemory"}) == wrong
