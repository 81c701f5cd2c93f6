"""Input files of the command line: by path, `-` for standard input, a pipe such as <(zcat x), or
`sample`, the trace that glake brings along."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from importlib import resources
from typing import Any

import click

from glake.groups import BadInput
from glake.units import printable

STDIN = "/dev/stdin"
SAMPLE = "sample"
_COPY = 1 << 20


class InputFile(click.Path):
    """The type of an argument that is read: an existing file or a pipe. "-" is standard input.
    "sample" is the trace that comes with glake, if no file has that name."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == SAMPLE and (os.path.isdir(value) or not os.path.exists(value)):
            value = str(resources.files("glake.trace") / "assets" / "sample.trace.gz")
        return super().convert(STDIN if value == "-" else value, param, ctx)


@contextlib.contextmanager
def bad_input() -> Iterator[None]:
    """Turns exceptions of readers (ValueError, OSError) into BadInput."""
    try:
        yield
    except (ValueError, OSError) as bad:
        raise BadInput(printable(str(bad))) from bad


@contextlib.contextmanager
def rereadable(path: str) -> Iterator[str]:
    """A path that can be opened repeatedly: `path` itself, or a copy of a pipe.

    The copy is a temporary file without a name, so that nothing is left however the process ends.
    Turns readers' errors inside into BadInput, which names `path`. Raises BadInput too if the copy
    has no room.
    """
    with bad_input():
        if stat.S_ISREG(os.stat(path).st_mode):
            yield path
            return
        with open(path, "rb") as pipe, tempfile.TemporaryFile(prefix="glake-") as copy:
            _copy(pipe, copy, path)
            again = f"/dev/fd/{copy.fileno()}"
            try:
                yield again
            except (ValueError, OSError) as bad:
                raise BadInput(printable(str(bad).replace(again, path))) from bad


def _copy(pipe: Any, copy: Any, path: str) -> None:
    try:
        shutil.copyfileobj(pipe, copy, _COPY)
        copy.flush()
    except OSError as full:
        raise BadInput(
            f"{path}: it is a pipe and is read twice, so that it is copied to "
            f"{tempfile.gettempdir()}: {full.strerror}; set TMPDIR to a folder with room, or give "
            "a file"
        ) from full


def check_output(source: str, out: str) -> None:
    """Raises BadParameter if the output `out` is the input `source`, or if its folder does not
    exist."""
    if not os.path.isdir(os.path.dirname(os.path.realpath(out))):
        raise click.BadParameter(f"{out}: there is no such folder", param_hint="-o")
    if os.path.exists(out) and os.path.samefile(source, out):
        raise click.BadParameter(f"{out} is the input", param_hint="-o")
