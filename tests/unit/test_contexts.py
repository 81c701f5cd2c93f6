"""Contexts that can be used again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

import glake
from glake.allocator.contexts import Reusable, reusable
from glake.errors import GlakeError, InvalidArgument, RegionRefused

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
