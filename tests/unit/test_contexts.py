"""Contexts that can be used again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from glake.allocator.contexts import reusable

opened: list[str] = []


@reusable
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
