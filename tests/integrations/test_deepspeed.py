"""DeepSpeed's NVMe and pinning slots by glake, without DeepSpeed: every call, and what fails."""

from __future__ import annotations

import contextlib
import sys
import types

import pytest

from glake.integrations import deepspeed


def test_calls_have_the_packages_meaning(program, tmp_path) -> None:
    assert program("deepspeed_io", tmp_path).stdout == "moved\n"


def test_the_copying_scope_takes_what_it_may(program) -> None:
    assert program("copying_scope").stdout == "copied\n"


@pytest.mark.parametrize("offloads", [(), ("cpu_offload",), ("pin_memory", "cpu_offload")])
def test_methods_are_in_the_scope_only_where_something_is_offloaded(monkeypatch, offloads) -> None:
    entered = []

    @contextlib.contextmanager
    def scope():
        entered.append(True)
        yield types.SimpleNamespace(bytes=0)

    class Optimizer:
        cpu_offload = pin_memory = False

        def step(self, scale: int, closure: int = 0) -> int:
            return scale + closure

    theirs = Optimizer.step
    module = types.ModuleType("deepspeed.fake")
    module.Optimizer = Optimizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed.fake", module)
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    monkeypatch.setattr(deepspeed, "torch_copies", scope)
    with contextlib.ExitStack() as made:
        deepspeed._wrap(made, "fake", "Optimizer", "step", offloads)
        optimizer = Optimizer()
        assert optimizer.step(3, closure=4) == 7 and bool(entered) == (not offloads)
        entered.clear()
        optimizer.cpu_offload = True
        assert optimizer.step(3, closure=4) == 7 and entered == [True]
    assert Optimizer.step is theirs
