"""TOML: read by Python's tomllib, written by tomli_w.

Values are bools, ints, floats, strings, lists and dicts; a None has no form in TOML.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glake import extras, files
from glake.errors import InvalidOption


def _reader() -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    return extras.needed(name, "reading TOML with Python 3.10", "tomli", "trainer")


def read(path: str | Path) -> dict[str, Any]:
    """The file's table; raises OSError, or InvalidOption with the line where it is no TOML."""
    reader = _reader()
    try:
        table: dict[str, Any] = reader.loads(Path(path).read_text("utf-8"))
    except (reader.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"no TOML: {error}") from None
    return table


def value_of(text: str) -> Any:
    """A value written as TOML, such as 8, 1e-3, true or [1, 2]; else the text itself."""
    reader = _reader()
    try:
        table = reader.loads(f"value = {text}")
    except reader.TOMLDecodeError:
        return text
    return table["value"] if list(table) == ["value"] else text


def write(path: str | Path, table: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all."""
    files.write_whole(Path(path), text_of(table), mode=0o666)


def text_of(table: Mapping[str, Any]) -> str:
    """Scalars and lists of a table first, then a heading for each table in it."""
    writer = extras.needed("tomli_w", "writing TOML", "tomli_w", "trainer")
    return writer.dumps(table)
