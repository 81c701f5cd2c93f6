"""Hooks replace functions of packages and put them back, and find packages' versions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from glake.integrations import megatron
from glake.integrations.replacing import replace, replace_item, version_of


@pytest.fixture(autouse=True)
def modules_as_before() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_what_was_there_comes_back() -> None:
    owner, table = SimpleNamespace(there=1), {"there": 1}
    with contextlib.ExitStack() as made:
        for name in ("there", "new"):
            replace(made, owner, name, object())
            replace_item(made, table, name, object())
        assert owner.there != 1 and table["there"] != 1
    assert vars(owner) == table == {"there": 1}


def test_what_others_have_set_meanwhile_stays() -> None:
    owner, table = SimpleNamespace(there=1), {"there": 1}
    with contextlib.ExitStack() as made:
        replace(made, owner, "there", object())
        replace_item(made, table, "there", object())
        owner.there = table["there"] = 2
    assert owner.there == table["there"] == 2


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    folder = tmp_path / name.replace(".", "/")
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for known in [each for each in sys.modules if each.split(".")[0] == name.split(".")[0]]:
        monkeypatch.delitem(sys.modules, known)


def test_a_checkout_on_the_path_says_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    package(tmp_path, monkeypatch, "megatron.core", "__version__ = '0.16.1'")
    assert megatron.version() == "0.16.1"
    package(tmp_path, monkeypatch, "silent_package", "")
    with pytest.raises(metadata.PackageNotFoundError, match="silent_package"):
        version_of("silent_package", "silent")
    with pytest.raises(ModuleNotFoundError):
        version_of("no_such_package", "no-such")


def test_metadata_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("some_package")
    module.__version__ = "0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_package", module)
    monkeypatch.setattr(metadata, "version", lambda name: "2" if name == "second" else "1")
    assert version_of("some_package", "first", "second") == "1"
