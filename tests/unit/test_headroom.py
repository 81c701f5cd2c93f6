"""glake.headroom leaves memory to others. A device may be given in any way that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from own_python import output

from glake import arguments, errors

PROGRAMS = Path(__file__).parent / "programs"


def run(name: str, **variables: str) -> str:
    """What a program prints on two simulated devices of 256 MiB. The test fails if the program
    does."""
    settings = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "256MiB", "GLAKE_SIM_DEVICES": "2"}
    return output(PROGRAMS / name, **settings, GLAKE_SIM_PHANTOM="1", **variables)


def test_set_restored_and_given_back() -> None:
    run("headroom_set.py")


def test_contexts_that_overlap() -> None:
    run("headroom_overlapping.py")


def test_it_is_named_when_it_keeps_a_region_from_coming_back() -> None:
    run("resumed_under_headroom.py")


def test_by_the_option() -> None:
    out = run("headroom_option.py", GLAKE_HEADROOM="128MiB")
    assert out.split() == ["fits", "True"]


def test_wrong_input_changes_nothing() -> None:
    run("headroom_wrong.py")


def test_too_much_is_refused_before_a_device_is_used() -> None:
    run("headroom_too_much.py")


@pytest.mark.parametrize(
    ("given", "number"),
    [(3, 3), ("cuda:3", 3), ("cuda", 0), (torch.device("cuda", 2), 2), (torch.tensor(1), 1)],
)
def test_devices_as_anybody_names_them(given: object, number: int) -> None:
    assert arguments.device_number(given) == number


@pytest.mark.parametrize(
    "wrong", ["cpu", "cuda:", "cuda:x", "0", -1, True, 0.0, None, torch.device("cpu"), "cuda:１"]
)
def test_what_is_no_gpu(wrong: object) -> None:
    with pytest.raises(errors.InvalidDevice, match="cuda:0"):
        arguments.device_number(wrong)
