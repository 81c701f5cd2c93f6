"""Context managers that can be used again: by several `with`, nested, and by several threads."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import ParamSpec

P = ParamSpec("P")


class Reusable(contextlib.ContextDecorator):
    """A context manager, and a decorator of functions. Each use makes a context of its own."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make = make
        self._open: list[tuple[int, contextlib.AbstractContextManager[None]]] = []

    def __enter__(self) -> None:
        made = self._make()
        made.__enter__()
        self._open.append((threading.get_ident(), made))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        opened = list(self._open)  # other threads change it meanwhile
        mine = [each for each in opened if each[0] == threading.get_ident()]
        last = (mine or opened)[-1]  # another thread's: the context itself refuses that
        self._open.remove(last)
        return last[1].__exit__(kind, error, trace)

    def _recreate_cm(self) -> Reusable:
        """Each call of a decorated function has its own, as contextlib's own decorators do."""
        return Reusable(self._make)


def reusable(function: Callable[P, Iterator[None]]) -> Callable[P, Reusable]:
    """As contextlib.contextmanager. What that makes can be used only once."""
    make = contextlib.contextmanager(function)

    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> Reusable:
        return Reusable(lambda: make(*args, **kwargs))

    return made
