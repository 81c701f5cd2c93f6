"""A hook waits until its package is imported, even if others looked for the package before."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from glake.integrations import imports


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file of a module that a hook waits for, and the list of calls to the hook."""
    name, calls = "glake_waits_for_this", []
    (tmp_path / f"{name}.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports.after(name, lambda: calls.append(sys.modules[name].VALUE))
    yield tmp_path / f"{name}.py", calls
    sys.modules.pop(name, None)
    imports._waiting.pop(name, None)


def test_whether_it_is_there_may_be_asked_before(package) -> None:
    file, calls = package
    for _ in range(2):  # transformers and accelerate look like this
        spec = importlib.util.find_spec(file.stem)
        assert spec is not None and spec.origin == str(file)
        assert spec.loader.get_filename(file.stem) == str(file)
    assert calls == []
    importlib.import_module(file.stem)
    assert calls == [3]
    importlib.import_module(file.stem)
    assert calls == [3]
    assert sys.modules[file.stem].__spec__.loader is sys.modules[file.stem].__loader__
    assert not isinstance(sys.modules[file.stem].__loader__, imports._Telling)


def test_an_import_that_fails_is_no_import(package) -> None:
    file, calls = package
    right = file.read_text()
    file.write_text("import no_such_dependency_of_it\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency_of_it"):
        importlib.import_module(file.stem)
    assert calls == []
    file.write_text(right)
    importlib.invalidate_caches()
    importlib.import_module(file.stem)
    assert calls == [3]


def test_what_is_not_there_is_still_waited_for(package) -> None:
    file, calls = package
    away = file.rename(file.with_suffix(".away"))
    importlib.invalidate_caches()
    assert importlib.util.find_spec(file.stem) is None
    away.rename(file)
    importlib.invalidate_caches()
    importlib.import_module(file.stem)
    assert calls == [3]
