"""Sharded checkpoints on disk, in the format of torch's DCP. Each is written whole or not at all.

A checkpoint is a folder. It is made under another name, and renamed when every file is there. Its
marker lists all files with their sizes and checksums.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import checkpoint

from glake.errors import NotWritten
from glake.trainer.fsdp.collectives import everyones

dcp: Any = checkpoint  # untyped: the module does not declare all that it exports
MARKER = "whole.json"
_NAME = "step-"
_OWN = re.compile(r"step-\d{8,}")  # other names are the user's
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Found:
    """A checkpoint."""

    path: Path
    marker: dict[str, Any]
    problem: str | None = None  # why the marker cannot be used; `marker` is empty then

    @property
    def step(self) -> int:
        """The number of steps after which the checkpoint was written."""
        return int(self.path.name[len(_NAME) :])


def write(
    folder: Path, marker: dict[str, Any], state: Mapping[str, Any], group: Any, text: str
) -> None:
    """Writes every rank's part. All ranks call it, each with tensors in host memory.

    `marker` has the step, notes and signature. `text` is the experiment's config. A folder that has
    the checkpoint's name is renamed. If it fails, every rank raises NotWritten, and nothing of the
    checkpoint stays.
    """
    part, rank = folder / f".{_NAME}{marker['step']:08d}.part", dist.get_rank(group)
    mine: Any
    try:
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(part), process_group=group)
        mine = {each.name: _facts(each) for each in part.glob(f"__{rank}_*.distcp")}
    except (OSError, dcp.CheckpointException) as error:
        mine = _reason(error)
    found = everyones(mine, group)
    problem = next((each for each in found if isinstance(each, str)), None)
    if problem is None and rank == 0:
        facts = {name: each for one in found for name, each in one.items()}
        problem = _committed(part, folder, marker | {"files": facts}, text)
    problem = everyones(problem, group)[0]
    if problem is not None:
        if rank == 0:
            shutil.rmtree(part, ignore_errors=True)
        size = sum(each.numel() * each.element_size() for each in state.values())
        raise NotWritten(
            f"the checkpoint of step {marker['step']} could not be written: {problem} "
            f"({folder}: it takes {size} bytes at least, and {_free(folder)} are free)"
        )


def path_of(folder: Path, step: int) -> Path:
    """The path of a step's checkpoint."""
    return folder / f"{_NAME}{step:08d}"


def _committed(part: Path, folder: Path, marker: dict[str, Any], text: str) -> str | None:
    """Moves a checkpoint to its place. Returns what went wrong, in words."""
    path = path_of(folder, marker["step"])
    try:
        (part / "config.toml").write_text(text)
        marker["files"] |= {".metadata": _facts(part / ".metadata")}
        with (part / MARKER).open("w") as file:
            json.dump(marker, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _synced(part)
        if path.exists():
            set_aside(path, "before")
        part.rename(path)
        _synced(folder)
    except OSError as error:
        return _reason(error)
    return None


def _free(folder: Path) -> str:
    try:
        return str(shutil.disk_usage(folder).free)
    except OSError as error:  # perhaps of the same fault that made the checkpoint fail
        return f"an unknown number ({error.strerror})"


def set_aside(path: Path, why: str) -> None:
    """Renames a checkpoint, so that nothing is lost. The new name is free, and is no
    checkpoint's."""
    names = (path.with_name(f"{path.name}.{why}-{at}") for at in itertools.count(1))
    path.rename(next(each for each in names if not each.exists()))


def _synced(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _facts(path: Path) -> list[int]:
    """The size in bytes and the CRC-32 of a file."""
    total = size = 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            total, size = zlib.crc32(piece, total), size + len(piece)
    return [size, total]


def _reason(error: BaseException) -> str:
    """What a file system's error means, and what would help."""
    causes = [error, *(failed for failed, _ in getattr(error, "failures", {}).values())]
    for each in causes:  # the loop appends the cause of each
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno)
        if cause := each.__cause__ or each.__context__:
            causes.append(cause)
    if any("inline_container" in str(each) for each in causes):  # torch's archive hides the cause
        return "the file system did not take a whole file: it is full, or limits their size"
    lines = str(error).strip().splitlines() or [""]
    # The last line of torch's nested texts says what the error was. In an out-of-memory error the
    # first line says it, and the next lines say who holds the memory.
    line = lines[0] if "out of memory" in lines[0] else lines[-1]
    return f"{type(error).__name__}: {line}"


def found_in(folder: Path) -> list[Found]:
    """The checkpoints, the newest first. A folder that holds no part of a checkpoint is the
    user's."""
    own = [path for path in folder.glob(f"{_NAME}*") if _OWN.fullmatch(path.name)]
    there = [path for path in own if any((path / name).exists() for name in (MARKER, ".metadata"))]
    return sorted(map(_found, there), key=lambda found: found.step, reverse=True)


def remove_partial(folder: Path, say: Callable[[str], None]) -> None:
    """Removes what a kill has left of a checkpoint that was being written or removed."""
    for path in folder.glob(f".{_NAME}*.part"):
        say(f"{path.name} was never finished: removed")
        shutil.rmtree(path, ignore_errors=True)


def _found(path: Path) -> Found:
    try:
        if not (path / MARKER).is_file():  # it may be a pipe, and reading that would wait
            return Found(path, {}, f"there is no file {MARKER}")
        marker = json.loads((path / MARKER).read_text())
        found = Found(path, marker)
        told = isinstance(marker["notes"], dict) and isinstance(marker["signature"], dict)
        if marker["files"].values() and told and marker["step"] == found.step:
            return found
    except OSError as error:
        return Found(path, {}, f"{MARKER}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return Found(path, {}, f"{MARKER} is not as it was written")


def damage(found: Found, rank: int, ranks: int) -> str | None:
    """Says what is wrong with this rank's share of the files."""
    if found.problem is not None:
        return found.problem
    for name, facts in sorted(found.marker["files"].items())[rank::ranks]:
        try:
            if _facts(found.path / name) != facts:
                return f"{name} is not as it was written"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def read(found: Found, state: Any, optimizer: Any, group: Any) -> None:
    """Loads the state, whatever number of ranks saved it. Raises CheckpointMismatch."""
    reader = dcp.FileSystemReader(found.path)
    tensors = state.template(reader.read_metadata().state_dict_metadata)
    dcp.load(tensors, storage_reader=reader, process_group=group)
    state.load(tensors, optimizer)


def prune(folder: Path, keep: int) -> None:
    """Removes all whole checkpoints but the newest ones."""
    whole = [each for each in found_in(folder) if each.problem is None]
    for each in whole[keep:]:
        # If a kill interrupts the removal, remove_partial() later finds this name.
        part = each.path.with_name(f".{each.path.name}.part")
        with contextlib.suppress(OSError):
            each.path.rename(part)
        shutil.rmtree(part, ignore_errors=True)
