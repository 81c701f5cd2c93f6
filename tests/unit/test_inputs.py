"""Traces from pipes and standard input are read as files are, even by commands that read twice."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from glake.cli import main

TRACES = Path(__file__).resolve().parents[1] / "traces"
PACKED = (TRACES / "fsdp-streams.trace.gz").read_bytes()
PLAIN = gzip.decompress(PACKED)
RMM = b"Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,512,0x0\n1,0,free,0x10,512,0x0\n"


def through_a_pipe(data: bytes, *arguments: object) -> Result:
    """Runs the command with a pipe that hands out `data` in place of the argument PIPE."""
    reading, writing = os.pipe()

    def feed() -> None:
        with open(writing, "wb") as pipe:
            pipe.write(data)

    feeder = threading.Thread(target=feed)
    feeder.start()
    name = f"/dev/fd/{reading}"
    try:
        words = [name if each == "PIPE" else str(each) for each in arguments]
        return CliRunner().invoke(main, words)
    finally:
        os.close(reading)  # ends the feeder even if nobody reads the pipe
        feeder.join()


@pytest.mark.parametrize("data", [PACKED, PLAIN], ids=["gzip", "plain"])
def test_a_trace_from_a_pipe_gives_what_its_file_gives(tmp_path: Path, data: bytes) -> None:
    path = TRACES / "fsdp-streams.trace.gz"

    def both(*arguments: str) -> tuple[Any, Any]:
        ran = through_a_pipe(data, *arguments)
        assert ran.exit_code == 0, ran.output
        given = CliRunner().invoke(
            main, [str(path) if each == "PIPE" else each for each in arguments]
        )
        return json.loads(ran.stdout), json.loads(given.stdout)

    piped, read = both("trace", "info", "PIPE", "--json")
    assert piped.pop("trace").startswith("/dev/fd/") and read.pop("trace") == str(path)
    assert piped == read
    piped, read = both("replay", "PIPE", "--policy", "bound", "--json")
    assert piped[0]["events"] == read[0]["events"] > 1000
    ran = through_a_pipe(data, "replay", "PIPE", "--policy", "bound")
    assert ran.stdout.startswith("pipe ")
    for form in ("perfetto", "memory_viz"):
        out = tmp_path / form
        ran = through_a_pipe(data, "trace", "export", "PIPE", "--to", form, "-o", out)
        assert ran.exit_code == 0 and out.stat().st_size > 10_000


def test_standard_input_is_a_dash_and_the_package_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "glake", "replay", "-", "--policy", "native", "--json"],
        input=PACKED, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["events"] > 1000


def test_a_log_from_a_pipe_is_converted(tmp_path: Path) -> None:
    out = tmp_path / "job.trace"
    ran = through_a_pipe(RMM, "trace", "convert", "PIPE", "-o", out)
    assert ran.exit_code == 0, ran.output
    assert "a 0 512 0" in out.read_text() or "a 1 512 0" in out.read_text()


@pytest.mark.parametrize("command", [("replay", "PIPE"), ("trace", "info", "PIPE")])
def test_a_bad_line_from_a_pipe_is_named(command: tuple[str, ...]) -> None:
    for data, why in ((b"a 1 512 0\nf 2\n", ":2: id: 2"), (PACKED[:2000], "gzip"), (b"", ":1")):
        ran = through_a_pipe(data, *command)
        assert ran.exit_code == 2 and why in ran.stderr, ran.output
        assert ran.stderr.startswith("Error: /dev/fd/") and ran.stderr.count("\n") == 1


def test_a_disk_without_room_for_the_copy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    ran = through_a_pipe(PLAIN, "trace", "info", "PIPE")
    assert ran.exit_code == 2
    assert "No space left on device" in ran.stderr and "TMPDIR" in ran.stderr


def test_no_copy_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for data in (PLAIN, b"nonsense"):
        through_a_pipe(data, "trace", "info", "PIPE")
    assert list(tmp_path.iterdir()) == []
