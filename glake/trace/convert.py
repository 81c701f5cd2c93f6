"""Converts PyTorch's memory snapshots, and RMM's logs, to allocation traces."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from typing import Any

from glake import arguments
from glake.errors import ConvertError, RefusedPickle
from glake.trace import history
from glake.trace.format import MAX_BYTES, opened, read_events
from glake.trace.history import Conversion, Entry
from glake.trace.snapshot import Snapshot

_RMM_HEADER = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]
_RMM_ACTIONS = {"allocate": "alloc", "free": "free"}


def convert(
    path: str | os.PathLike[str], out: str | os.PathLike[str], device: int | None = None
) -> Conversion:
    """Writes a snapshot or a log as a trace. The file's content tells which it is.

    Args:
        path: a pickle of ``torch.cuda.memory._dump_snapshot()`` or ``glake.dump_snapshot()`` with
            history; or the CSV of RMM's logging adaptor. Nothing in the pickle is run.
        out: the trace; gzip if the name ends in .gz.
        device: the device to take, if a snapshot has the history of several.

    Blocks that were live before the history began come first. A snapshot's stacks become tags of
    the user's own frames. The result's `notes` name what could not be converted. Raises FileFailed,
    and RefusedPickle or ConvertError, which are ValueErrors that name the file and the field.
    """
    name = arguments.path("a snapshot or a log", path)
    with opened(name, "rb") as file:
        start = file.read(64)
    try:
        if start.startswith(",".join(_RMM_HEADER[:4]).encode()):
            if device is not None:
                raise ConvertError("a log of RMM's says nothing of devices")
            return history.write(lambda: _rmm_entries(name), {}, {"recorder": "rmm"}, out)
        snapshot = Snapshot(name, device)
        header = {"recorder": "pytorch snapshot", "device": snapshot.device}
        result = history.write(snapshot.entries, snapshot.held_at_the_end(), header, out)
        if given_back := snapshot.given_back():
            result.notes.append(
                f"memory went back to the driver {given_back} times (empty_cache(), or to make "
                "room); a trace does not say so, and a policy decides for itself"
            )
        return result
    except RefusedPickle:
        if not _is_trace(name):
            raise
        raise ConvertError(f"{name}: a trace already: replay or export it as it is") from None
    except ConvertError as error:
        raise ConvertError(f"{name}: {error}") from error


def _is_trace(path: str) -> bool:
    try:
        return next(read_events(path), None) is not None
    except ValueError:
        return False


def _rmm_entries(path: str) -> Iterator[Entry]:
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(file)
        if next(rows, None) != _RMM_HEADER:
            raise ConvertError(f"line 1: not the columns {','.join(_RMM_HEADER)}")
        for row in _rows(rows):
            if not row:
                continue
            if len(row) != len(_RMM_HEADER):
                raise ConvertError(f"line {rows.line_num}: {len(row)} columns, not 6")
            action = _RMM_ACTIONS.get(row[2])
            if action is None:  # "allocate failure", or an action of a later version
                continue
            address = _number(row[3], "Pointer", rows.line_num)
            size = _number(row[4], "Size", rows.line_num)
            if address and size:
                yield Entry(action, address, size, _number(row[5], "Stream", rows.line_num))


def _rows(rows: Any) -> Iterator[list[str]]:
    """The rows. Raises ConvertError for what the reader takes for no row of a table."""
    try:
        yield from rows
    except csv.Error as error:
        raise ConvertError(f"line {rows.line_num}: {error}") from None


def _number(text: str, column: str, line: int) -> int:
    try:
        number = int(text.strip(), 16 if text.strip().lower().startswith("0x") else 10)
    except ValueError:
        raise ConvertError(f"line {line}: {column}: {text[:40]!r} is not a number") from None
    if not 0 <= number <= MAX_BYTES and column == "Size":
        raise ConvertError(f"line {line}: {column}: {text[:40]!r} is no size")
    return number
