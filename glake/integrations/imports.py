"""Calls a function once a package has been imported."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_waiting: dict[str, Callable[[], None]] = {}


def after(package: str, call: Callable[[], None]) -> None:
    """Calls `call` at the end of the package's first import, or at once if it is imported already.

    If it is called again for a package, the last function counts.
    """
    module = sys.modules.get(package)
    if module is not None:
        spec = module.__spec__
        if spec is None or not getattr(spec, "_initializing", False):
            call()
        else:  # its import is under way: it imports torch, and that arms the hooks
            vars(spec)["glake_call"] = call
            spec.__class__ = _Watched
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting[package] = call


class _Finder(MetaPathFinder):
    """Finds no module itself. It returns the other finders' result, with a loader that reports the
    end of the import.

    A search for a module is no import yet. transformers and others first ask whether a package
    exists.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting or fullname in _others():
            return None
        _others().add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            _others().discard(fullname)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Telling(spec.loader)
        return spec


def _others() -> set[str]:
    """The modules for which this thread is asking the other finders."""
    names: set[str] = _thread.__dict__.setdefault("asked", set())
    return names


_thread = threading.local()


class _Telling(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        """An attribute of the loader itself: its file, its source and the like."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        call = _waiting.pop(module.__name__, None)
        if call is not None:
            call()


class _Watched(ModuleSpec):
    """The state of a module whose import is under way. At the end the interpreter clears a mark
    here."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            call = vars(self).pop("glake_call")
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # not if the import has failed
                call()
