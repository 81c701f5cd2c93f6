"""Calls a function once a package has been imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_waiting: dict[str, Callable[[], None]] = {}


def after(package: str, call: Callable[[], None]) -> None:
    """Calls it at the end of the package's first import, at once if it has been imported.

    The last call given counts.
    """
    module = sys.modules.get(package)
    if module is not None:
        spec = module.__spec__
        if spec is None or not getattr(spec, "_initializing", False):
            call()
        else:  # it imports torch, which arms the hooks
            vars(spec)["glake_call"] = call
            spec.__class__ = _Watched
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting[package] = call


class _Finder(MetaPathFinder):
    """Finds nothing of its own: the others' module, whose loader then tells of its end."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        call = _waiting.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            _waiting[fullname] = call
            return None
        spec.loader = _Telling(spec.loader, call)
        return spec


class _Telling(Loader):
    def __init__(self, loader: Loader, call: Callable[[], None]) -> None:
        self._loader, self._call = loader, call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._call()


class _Watched(ModuleSpec):
    """Of a module whose import is under way: the interpreter ends it by clearing a mark here."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            call = vars(self).pop("glake_call")
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            if self.name in sys.modules:  # not if the import has failed
                call()
