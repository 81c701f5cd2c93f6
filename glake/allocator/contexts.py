"""Context managers that can be used again: by several `with`, nested, and by several threads."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from glake.errors import GlakeError, InvalidArgument, WrongType

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_LAZY = {  # calls return before the body runs
    "an async function": inspect.iscoroutinefunction,
    "an async generator": inspect.isasyncgenfunction,
    "a generator": inspect.isgeneratorfunction,
}


class Reusable(contextlib.ContextDecorator):
    """A context manager, and a decorator of functions. Each use makes a context of its own.

    Only the thread that opened a context can end it. Its end on another thread raises `refused`,
    and the context stays open.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], contextlib.AbstractContextManager[None]],
        refused: type[GlakeError],
    ) -> None:
        self._name, self._make, self._refused = name, make, refused
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
        if not mine and opened:
            raise self._refused(
                f"{self._name} was opened by another thread, which is in it still: leave it on the "
                "thread that has opened it"
            )
        if not mine:
            raise self._refused(f"{self._name} is not open: each end needs an enter before it")
        self._open.remove(mine[-1])
        return mine[-1][1].__exit__(kind, error, trace)

    def __call__(self, func: F) -> F:
        """Decorates a function.

        Raises:
            WrongType: it is a generator or an async function.
        """
        for kind, is_one in _LAZY.items():
            if is_one(func):
                raise WrongType(
                    f"{self._name} cannot decorate {func.__qualname__}(), {kind}: its body runs "
                    "after the call has returned. Use `with` inside it, without await or yield"
                )
        return super().__call__(func)

    def _recreate_cm(self) -> Reusable:
        """Each call of a decorated function has its own, as contextlib's own decorators do."""
        return Reusable(self._name, self._make, self._refused)


def reusable(
    refused: type[GlakeError] = InvalidArgument,
) -> Callable[[Callable[P, Iterator[None]]], Callable[P, Reusable]]:
    """As contextlib.contextmanager. What that makes can be used only once.

    Args:
        refused: the error of an end on a thread that did not open the context.
    """

    def decorate(function: Callable[P, Iterator[None]]) -> Callable[P, Reusable]:
        make = contextlib.contextmanager(function)

        @functools.wraps(function)
        def made(*args: P.args, **kwargs: P.kwargs) -> Reusable:
            values = [repr(each) for each in (*args, *kwargs.values())]
            name = " ".join([function.__name__, *values[:1]])
            return Reusable(name, lambda: make(*args, **kwargs), refused)

        return made

    return decorate


@dataclass(eq=False)
class _Opened(Generic[T]):
    name: str
    before: T  # the thread's value before the context was opened


class ThreadSetting(Generic[T]):
    """A setting of each thread. A context sets it, and sets the former value at its end.

    Contexts of one thread may overlap, as those of two asyncio tasks do. Those that are still open
    then keep their value, and the last one to end sets the value from before the first.
    """

    def __init__(
        self, what: str, put: Callable[[T], T], refused: type[GlakeError] = InvalidArgument
    ) -> None:
        """`what` names the setting. `put` sets it for the calling thread, and returns the former
        value."""
        self._what, self._put, self._refused = what, put, refused
        self._thread = threading.local()  # `opened`: the thread's contexts, the innermost last

    @contextlib.contextmanager
    def during(self, name: str, value: T) -> Iterator[None]:
        """Raises `refused` at its end if a context that was opened later is still open."""
        opened = _Opened(name, self._put(value))
        self._mine().append(opened)
        try:
            yield
        finally:
            self._end(opened)

    def _mine(self) -> list[_Opened[T]]:
        mine: list[_Opened[T]] = self._thread.__dict__.setdefault("opened", [])
        return mine

    def _end(self, opened: _Opened[T]) -> None:
        mine = self._mine()
        if opened not in mine:  # dropped without an end, and collected on another thread
            return
        later = mine[mine.index(opened) + 1 :]
        mine.remove(opened)
        if not later:
            self._put(opened.before)
            return
        later[0].before = opened.before
        last = later[-1].name
        raise self._refused(
            f"{self._what} {opened.name!r} ends while {last!r}, which was opened later on this "
            f"thread, is open: what was allocated since then is of {last!r}. Tasks of one thread "
            f"share its {self._what}: do not await inside one"
        )
