"""Contexts that can be used again."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import glake
from glake import _C
from glake.allocator import debug
from glake.allocator.contexts import Reusable, reusable
from glake.errors import GlakeError, InvalidArgument, RegionRefused, WrongType

opened: list[str] = []


@reusable()
def named(name: str) -> Iterator[None]:
    """A context that must be left by the thread that entered it."""
    thread = threading.get_ident()
    opened.append(name)
    try:
        yield
    finally:
        assert threading.get_ident() == thread
        opened.remove(name)


def test_one_context_serves_again_and_nested() -> None:
    context = named("a")
    for _ in range(2):
        with context, context:
            assert opened == ["a", "a"]
    with pytest.raises(ValueError, match="told"), context:
        raise ValueError("told")
    assert opened == []


@pytest.mark.parametrize(
    ("context", "refused", "name"),
    [
        (glake.region("weights"), RegionRefused, "region 'weights'"),
        (glake.tag("a"), InvalidArgument, "tag 'a'"),
        (glake.contiguous(), InvalidArgument, "contiguous"),
    ],
)
def test_only_the_thread_that_opened_it_leaves_it(
    context: Reusable, refused: type[GlakeError], name: str
) -> None:
    told: list[str] = []

    def leave() -> None:
        with pytest.raises(refused) as caught:
            context.__exit__(None, None, None)
        told.append(str(caught.value))

    context.__enter__()
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert told and told[0].startswith(f"{name} was opened by another thread")
    context.__exit__(None, None, None)  # the way out that the text names
    with pytest.raises(refused, match="is not open"):
        context.__exit__(None, None, None)


def _kind() -> int:
    now = _C.set_kind(0)
    _C.set_kind(now)
    return now


def _pool() -> tuple[int, int]:
    now = _C.set_pool((0, 0))
    _C.set_pool(now)
    return now


@pytest.mark.parametrize(
    ("first", "second", "refused", "value"),
    [
        (glake.region("a"), glake.region("b"), RegionRefused, _pool),
        (glake.tag("a"), glake.tag("b"), InvalidArgument, lambda: getattr(debug._now, "tag", None)),
        (glake.contiguous("vmm"), glake.contiguous("legacy"), InvalidArgument, _kind),
    ],
)
def test_tasks_that_overlap_leave_nothing_behind(
    first: Reusable, second: Reusable, refused: type[GlakeError], value: Callable[[], object]
) -> None:
    """The first task to end is told. The second one keeps its value, and then none is left."""
    before = value()
    with second:
        of_second = value()

    async def inside(begun: asyncio.Event, go_on: asyncio.Event) -> None:
        with first:
            begun.set()
            await go_on.wait()

    async def told(*events: asyncio.Event) -> None:
        with pytest.raises(refused, match=r"ends while .* is open: .* do not await inside one"):
            await inside(*events)

    async def both() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(told(begun, go_on))
        await begun.wait()
        with second:
            go_on.set()
            await task
            assert value() == of_second != before

    asyncio.run(both())
    assert value() == before


def test_functions_whose_body_runs_later_are_not_decorated() -> None:
    async def load() -> None:
        pass

    def blocks() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    for function, kind in (
        (load, "an async function"),
        (blocks, "a generator"),
        (stream, "an async generator"),
    ):
        for context in (glake.region("weights"), glake.tag("a"), glake.contiguous()):
            with pytest.raises(WrongType, match=rf"{function.__name__}\(\), {kind}: its body"):
                context(function)


def test_each_thread_leaves_its_own() -> None:
    context = named("b")
    failures: list[BaseException] = []

    @context
    def decorated() -> None:
        pass

    def work() -> None:
        try:
            for _ in range(4000):
                decorated()
        except BaseException as error:
            failures.append(error)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert failures == [] and opened == []
