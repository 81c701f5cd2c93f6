"""glake.headroom: memory that is left to others; devices as anybody names them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from glake import arguments, errors

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, **variables: str) -> str:
    """Output of a Python on two simulated devices of 256 MiB; fails the test if it does."""
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    settings = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "256MiB", "GLAKE_SIM_DEVICES": "2"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=clean | settings | {"GLAKE_SIM_PHANTOM": "1", "PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_set_restored_and_given_back() -> None:
    run(
        """
        import glake
        from glake import _C
        MIB = 1 << 20
        _C.free(_C.malloc(200 * MIB))
        with glake.headroom("100MiB") as outer:
            assert outer.bytes == 100 * MIB and outer.free_bytes >= 100 * MIB
            assert glake.stats()["glake.headroom_bytes"] == 100 * MIB
            with glake.headroom(8 * MIB, device="cuda:1"):
                assert _C.headroom(0) == 100 * MIB and _C.headroom(1) == 8 * MIB
            assert _C.headroom(1) == 100 * MIB
            held = _C.malloc(150 * MIB)
            try:
                _C.malloc(20 * MIB)
            except glake.OutOfMemory as error:
                assert "Lowering the headroom by" in str(error)
            else:
                raise AssertionError
            _C.free(held)
        assert _C.headroom(0) == _C.headroom(1) == _C.headroom(-1) == 0
        kept = glake.headroom(0)
        kept.restore()
        assert kept.free_bytes > 0
        """
    )


def test_by_the_option() -> None:
    out = run(
        """
        import glake
        from glake import _C
        for size in (100, 160):
            try:
                _C.free(_C.malloc(size << 20))
                print("fits")
            except glake.OutOfMemory as error:
                print("headroom" in str(error))
        """,
        GLAKE_HEADROOM="128MiB",
    )
    assert out.split() == ["fits", "True"]


def test_wrong_input_changes_nothing() -> None:
    run(
        """
        import glake
        from glake import _C, errors
        _C.free(_C.malloc(1))
        glake.headroom("2MiB")
        wrong = [("x", errors.InvalidArgument), (-1, errors.InvalidArgument),
                 ("1GiB", errors.InvalidArgument), (None, errors.WrongType),
                 (1.5, errors.WrongType), (True, errors.WrongType),
                 (1 << 63, errors.InvalidArgument)]
        for size, error in wrong:
            try:
                glake.headroom(size)
            except error as said:
                assert repr(size) in str(said) or "GiB" in str(said) or str(size) in str(said), said
            else:
                raise AssertionError(size)
        for device in (2, -1, "cuda:2", "cpu", "gpu0", 1.0):
            try:
                glake.headroom(0, device=device)
            except errors.InvalidDevice:
                continue
            raise AssertionError(device)
        assert _C.headroom(0) == _C.headroom(-1) == 2 << 20
        glake.headroom("0")  # as 0
        assert _C.headroom(0) == _C.headroom(-1) == 0
        """
    )


def test_too_much_is_refused_before_a_device_is_used() -> None:
    run(
        """
        import glake
        from glake import _C
        try:
            glake.headroom("10TiB")
        except glake.InvalidArgument as said:
            assert "cuda:0, which has 256.00 MiB: give less" in str(said), said
        else:
            raise AssertionError
        glake.headroom("2MiB").restore()
        _C.free(_C.malloc(200 << 20))
        """
    )


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
