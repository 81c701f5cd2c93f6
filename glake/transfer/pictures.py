"""Writes pictures to files: checks whether that is possible, and writes them whole or not at all.

matplotlib (the `topology` extra) is imported only when a picture is drawn.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from glake import drawing, extras, files
from glake.errors import InvalidArgument

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check(file: Path) -> None:
    """Checks whether `page` can write there. Raises InvalidArgument without matplotlib, or for a
    wrong suffix or folder."""
    if file.suffix.lower() not in (".png", ".svg"):
        raise InvalidArgument(f"{file}: give a name that ends in .png or .svg")
    check_place(file)
    try:
        drawing.load()
    except ImportError as error:
        raise InvalidArgument(
            extras.missing("a picture", "matplotlib", "topology", error)
        ) from error


def check_place(file: Path) -> None:
    """Raises InvalidArgument if a file of that name cannot be written."""
    if not os.access(file.absolute().parent, os.W_OK) or file.is_dir():
        raise InvalidArgument(f"{file} cannot be written: give a file in a folder that can")


@contextmanager
def page(
    file: Path, inches: tuple[float, float], dpi: int, font_size: float = 10
) -> Iterator[Figure]:
    """A figure to draw in. At the end it is written to `file`. The same drawing gives the same
    bytes. The suffix, .png or .svg, is the format.

    Raises InvalidArgument as `check` does, and OSError if the file cannot be written.
    """
    check(file)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kind = file.suffix.lower().lstrip(".")
    with rc_context({"svg.hashsalt": "glake", "svg.fonttype": "none", "font.size": font_size}):
        figure = Figure(figsize=inches)
        FigureCanvasAgg(figure)
        yield figure
        drawn = io.BytesIO()
        figure.savefig(
            drawn, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else {}
        )
        files.write_whole(file, drawn.getvalue(), mode=0o644)
