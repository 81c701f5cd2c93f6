"""glake.contiguous, pin, share and the rest: the Python face of memory that others see whole."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glake
from glake.allocator import sharing
from glake.errors import WrongType

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, **variables: str) -> str:
    """Output of a Python on the simulated driver; fails the test if it does."""
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    settings = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "64MiB", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**clean, **settings, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_contiguous_blocks() -> None:
    run(
        """
        import threading
        import glake
        from glake import _C

        def whole() -> int:
            return _C.stats()["glake.contiguous_bytes"]

        with glake.contiguous():
            a = _C.malloc(3 << 20)
            assert whole() == 4 << 20
            with glake.contiguous("legacy"):
                b = _C.malloc(1)
            with glake.contiguous("stitched"):
                c = _C.malloc(3 << 20)
            assert whole() == 6 << 20
            other = threading.Thread(target=lambda: _C.free(_C.malloc(3 << 20)))
            other.start()
            other.join()
            assert whole() == 6 << 20
        try:
            with glake.contiguous():
                raise KeyError
        except KeyError:
            pass
        d = _C.malloc(3 << 20)
        assert whole() == 6 << 20
        for ptr in (a, b, c, d):
            _C.free(ptr)
        _C.check()
        _C.shutdown()
        """
    )


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'paged'"), glake.contiguous("paged"):
        pass


def test_option() -> None:
    code = """
        from glake import _C
        ptr = _C.malloc(8 << 20)
        print(_C.stats()["glake.contiguous_bytes"])
        """
    assert run(code, GLAKE_CONTIGUOUS="legacy:8MiB").split() == [str(8 << 20)]
    assert run(code, GLAKE_CONTIGUOUS="9MiB").split() == ["0"]


@pytest.mark.parametrize("call", [glake.pin, sharing.unpin, glake.share])
def test_an_address_is_wanted_not_what_is_there(call: Callable[[Any], Any]) -> None:
    """A tensor has an address; its repr would read memory, which may be paused."""

    class Tensor:
        def data_ptr(self) -> int:
            return 1 << 21

        def __repr__(self) -> str:
            raise AssertionError("read")

    for wrong in (Tensor(), "a", None, 1.5):
        with pytest.raises(WrongType, match=f"data_ptr.., not a {type(wrong).__name__}"):
            call(wrong)


def test_pins_and_host_memory() -> None:
    run(
        """
        import glake
        from glake import _C

        ptr = _C.malloc(3 << 20)
        glake.pin(ptr)
        _C.free(ptr)
        _C.empty_cache()
        assert _C.stats()["glake.pinned_bytes"] == 4 << 20
        glake.unpin(ptr)
        for wrong in (lambda: glake.unpin(ptr), lambda: glake.pin(ptr), lambda: glake.pin(0)):
            try:
                wrong()
            except glake.InvalidPointer:
                continue
            raise AssertionError("accepted")
        host = _C.host_malloc(1000)
        _C.host_record_stream(host, 0, 0)
        _C.host_free(host)
        _C.host_empty_cache()
        assert _C.host_stats()["reserved_bytes.current"] == 0
        _C.shutdown()
        """
    )


def test_blocks_cross_processes() -> None:
    """A child opens the parent's block by its text; wrong texts raise typed errors."""
    child = """
        import sys
        import glake
        from glake.allocator import sharing
        from glake import _C

        text = sys.stdin.readline().strip()
        ptr, size = sharing.open_shared(text)
        assert size == 5_000_000 and sharing.open_shared(text) == (ptr, size)
        sharing.close_shared(ptr)
        sharing.close_shared(ptr)
        for wrong, error in (
            (lambda: sharing.close_shared(ptr), glake.InvalidPointer),
            (lambda: sharing.open_shared(text[:-1]), glake.InvalidArgument),
            (lambda: sharing.open_shared(text + chr(0)), glake.InvalidArgument),
        ):
            try:
                wrong()
            except error:
                continue
            raise AssertionError("accepted")
        _C.shutdown()
        print("opened")
        """
    run(
        f"""
        import subprocess, sys
        from glake.allocator import sharing
        from glake import _C

        ptr = _C.malloc(5_000_000)
        code = {textwrap.dedent(child)!r}
        done = subprocess.run(
            [sys.executable, "-c", code], input=sharing.share(ptr), capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, "opened\\n"), done.stderr
        _C.free(ptr)
        _C.shutdown()
        """,
        GLAKE_SIM_MACHINE=f"sharing-{os.getpid()}",
    )
    assert sharing.__doc__
