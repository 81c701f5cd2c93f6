"""glake.contiguous, pin, share and the rest: Python calls for memory that others see whole."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_python import output

import glake
from glake.allocator import sharing
from glake.errors import WrongType

PROGRAMS = Path(__file__).parent / "programs"


def run(name: str, *arguments: str, **variables: str) -> str:
    """What a program prints on the simulated driver. The test fails if the program does."""
    settings = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "64MiB"}
    return output(PROGRAMS / name, *arguments, **settings, **variables)


def test_contiguous_blocks() -> None:
    run("contiguous_blocks.py")


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'paged'"), glake.contiguous("paged"):
        pass


def test_option() -> None:
    assert run("contiguous_bytes.py", GLAKE_CONTIGUOUS="legacy:8MiB").split() == [str(8 << 20)]
    assert run("contiguous_bytes.py", GLAKE_CONTIGUOUS="9MiB").split() == ["0"]


@pytest.mark.parametrize("call", [glake.pin, sharing.unpin, glake.share])
def test_an_address_is_wanted_not_what_is_there(call: Callable[[Any], Any]) -> None:
    """The error does not show a tensor's repr, which would read memory that may be paused."""

    class Tensor:
        def data_ptr(self) -> int:
            return 1 << 21

        def __repr__(self) -> str:
            raise AssertionError("read")

    for wrong in (Tensor(), "a", None, 1.5):
        with pytest.raises(WrongType, match=f"data_ptr.., not a {type(wrong).__name__}"):
            call(wrong)


def test_pins_and_host_memory() -> None:
    run("pins.py")


def test_blocks_cross_processes() -> None:
    """A child opens the parent's block by its text; wrong texts raise typed errors."""
    run(
        "shares_a_block.py",
        str(PROGRAMS / "opens_shared.py"),
        GLAKE_SIM_MACHINE=f"sharing-{os.getpid()}",
    )
    assert sharing.__doc__
