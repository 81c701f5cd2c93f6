"""TOML: read by Python's tomllib, written by the few lines below.

Values are bools, ints, floats, strings, lists and dicts; a None has no form in TOML.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glake import extras
from glake.errors import InvalidOption

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def _reader() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib
    try:
        import tomli  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise InvalidOption(
            extras.missing("reading TOML with Python 3.10", "tomli", "trainer")
        ) from None
    return tomli


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
    part = Path(f"{path}.{os.getpid()}.part")
    try:
        part.write_text(text_of(table), "utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def text_of(table: Mapping[str, Any]) -> str:
    """Scalars and lists of a table first, then a heading for each table in it."""
    return "\n".join(_lines("", table)).lstrip("\n") + "\n"


def _lines(path: str, table: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{_key(key)} = {_value(value)}"
        for key, value in table.items()
        if not isinstance(value, Mapping)
    ]
    for key, value in table.items():
        if isinstance(value, Mapping):
            below = f"{path}.{_key(key)}" if path else _key(key)
            lines += ["", f"[{below}]", *_lines(below, value)]
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):  # JSON's escapes are TOML's, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(entry)}" for key, entry in value.items())
        return f"{{{inside}}}"
    raise InvalidOption(f"{value!r} has no form in TOML")
