"""Sharded checkpoints on disk, by torch's DCP: written whole or not at all.

A checkpoint is a folder; it is whole once its marker, which lists every file with its size and
checksum, is renamed into place. Whatever is killed before leaves a folder without a marker.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import checkpoint

from glake.errors import CheckpointMismatch, InvalidArgument, NotWritten

dcp: Any = checkpoint  # which does not declare all that it exports
MARKER = "whole.json"
_NAME = "step-"
_OWN = re.compile(r"step-\d{8,}")  # other names are the user's
# All that a checkpoint is made of, the first part by torch: a folder with more in it, or without
# any of torch's, is the user's.
_TORCHS = re.compile(r"__\d+_\d+\.distcp(\.tmp)?|\.metadata(\.tmp)?")
_OURS = ("config.toml", f"{MARKER}.new")
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Found:
    """A checkpoint with a marker."""

    path: Path
    marker: dict[str, Any]
    problem: str | None = None  # with the marker itself, which then says nothing

    @property
    def step(self) -> int:
        """After how many steps it was written."""
        return int(self.path.name[len(_NAME) :])

    @property
    def notes(self) -> dict[str, Any]:
        """What was saved beside the tensors."""
        return dict(self.marker["notes"])


def write(
    folder: Path,
    marker: dict[str, Any],
    state: Mapping[str, Any],
    group: Any,
    config: str,
    say: Callable[[str], None],
) -> Path:
    """Writes every rank's part; all ranks call it, each with tensors in host memory.

    `marker`: the step, notes and signature. What stood in its place stays under another name,
    which `say` is told. NotWritten, on every rank; then nothing of it stays.
    """
    path = folder / f"{_NAME}{marker['step']:08d}"
    rank = dist.get_rank(group)
    problem = _first(_made(path, say) if rank == 0 else None, group)
    if problem is None:
        problem, mine = _saved(path, state, group)
        everyones: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyones, mine, group)
        problem = _first(problem, group)
        if problem is None and rank == 0:
            files = {name: facts for each in everyones for name, facts in each.items()}
            problem = _committed(path, marker | {"files": files}, config)
        problem = _first(problem, group)
    if problem is not None:
        if rank == 0 and _left_over(path):
            shutil.rmtree(path, ignore_errors=True)
        raise NotWritten(f"the checkpoint of step {marker['step']} could not be written: {problem}")
    return path


def _first(problem: str | None, group: Any) -> str | None:
    """What the first rank with a problem says, on every rank."""
    everyones: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyones, problem, group)
    return next(filter(None, everyones), None)


def _made(path: Path, say: Callable[[str], None]) -> str | None:
    """An empty folder. What stands there and is no left-over of a kill is given another name."""
    try:
        if _left_over(path):
            shutil.rmtree(path)
        elif path.exists() and not (path.is_dir() and not any(path.iterdir())):
            aside = _aside(path)
            path.rename(aside)
            say(f"{path} was there already: it is {aside} now")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _reason(error)
    return None


def _left_over(path: Path) -> bool:
    """Whether a killed job began to write a checkpoint there, and nobody else put anything in."""
    if not path.is_dir():
        return False
    names = [each.name for each in path.iterdir()]
    torchs = [name for name in names if _TORCHS.fullmatch(name)]
    return bool(torchs) and all(name in torchs or name in _OURS for name in names)


def _aside(path: Path) -> Path:
    """A free name beside it, which no checkpoint has."""
    names = (path.with_name(f"{path.name}.before-{at}") for at in itertools.count(1))
    return next(each for each in names if not each.exists())


def _saved(path: Path, state: Mapping[str, Any], group: Any) -> tuple[str | None, dict[str, Any]]:
    """(what went wrong, the facts of this rank's files)."""
    try:
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(path), process_group=group)
        own = sorted(path.glob(f"__{dist.get_rank(group)}_*.distcp"))
        return None, {each.name: _facts(each) for each in own}
    except (OSError, dcp.CheckpointException) as error:
        return f"{_reason(error)}{_room(path)}", {}


def _room(path: Path) -> str:
    """What is free there, in words; nothing where the folder has been removed."""
    try:
        return f" ({shutil.disk_usage(path).free} bytes are free)"
    except OSError:
        return ""


def _committed(path: Path, marker: dict[str, Any], config: str) -> str | None:
    """Puts the marker into place; what went wrong, in words."""
    try:
        (path / "config.toml").write_text(config)
        marker["files"] |= {".metadata": _facts(path / ".metadata")}
        fresh = path / f"{MARKER}.new"
        with fresh.open("w") as file:
            json.dump(marker, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path / MARKER)
        for each in (path, path.parent):
            handle = os.open(each, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        return _reason(error)
    return None


def _facts(path: Path) -> list[int]:
    """[bytes, CRC-32] of a file."""
    total = size = 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            total, size = zlib.crc32(piece, total), size + len(piece)
    return [size, total]


def _reason(error: BaseException) -> str:
    """What a disk's refusal means, with what would help."""
    causes = [error, *(failed for failed, _ in getattr(error, "failures", {}).values())]
    for each in causes:  # which grows by what each was caused by
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno)
        if cause := each.__cause__ or each.__context__:
            causes.append(cause)
    if any("inline_container" in str(each) for each in causes):  # torch's archive, which says less
        return "the file system did not take a whole file"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"


def found_in(folder: Path) -> tuple[list[Found], list[Path]]:
    """(checkpoints with a marker, newest first; folders that were left partial)."""
    own = [path for path in folder.glob(f"{_NAME}*") if _OWN.fullmatch(path.name)]
    whole = [_found(path) for path in own if (path / MARKER).exists()]
    whole.sort(key=lambda found: found.step, reverse=True)
    return whole, sorted(path for path in own if _left_over(path))


def _found(path: Path) -> Found:
    if not (path / MARKER).is_file():  # a pipe, which reading would wait for
        return Found(path, {}, f"{MARKER} is no file")
    try:
        marker = json.loads((path / MARKER).read_text())
        facts = [tuple(map(int, each)) for each in marker["files"].values()]
        told = isinstance(marker["notes"], dict) and isinstance(marker.get("signature", {}), dict)
        found = Found(path, marker)
        if facts and told and marker["step"] == found.step and all(len(e) == 2 for e in facts):
            return found
    except OSError as error:
        return Found(path, {}, f"{MARKER}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return Found(path, {}, f"{MARKER} is not as it was written")


def damage(found: Found, rank: int, ranks: int) -> str | None:
    """What is wrong with this rank's share of the files, in words."""
    if found.problem is not None:
        return found.problem
    for name, facts in sorted(found.marker["files"].items())[rank::ranks]:
        try:
            there = _facts(found.path / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if there[0] != facts[0]:
            return f"{name} has {there[0]} bytes, not {facts[0]}"
        if there[1] != facts[1]:
            return f"{name}: its checksum is not the one it was written with"
    return None


def read(found: Found, sharded: Any, optimizer: Any, group: Any) -> None:
    """Puts the state in place, at whatever number of ranks it was saved. CheckpointMismatch."""
    reader = dcp.FileSystemReader(found.path)
    try:
        state = sharded.template(reader.read_metadata().state_dict_metadata, optimizer)
        dcp.load(state, storage_reader=reader, process_group=group)
        sharded.load(state, optimizer)
    except InvalidArgument as error:
        raise CheckpointMismatch(
            f"the checkpoint {found.path} is of another model or optimizer: {error}. Its own "
            f"config is {found.path / 'config.toml'}; or take another checkpoint.folder, or begin "
            "anew with checkpoint.resume=false"
        ) from None


def prune(folder: Path, keep: int, damaged: Collection[Path]) -> None:
    """Removes all whole checkpoints but the newest ones, their markers first. Those known to be
    damaged count for none, and stay for whoever may mend them."""
    found = found_in(folder)[0]
    whole = [each for each in found if each.problem is None and each.path not in damaged]
    for each in whole[keep:]:
        with contextlib.suppress(OSError):
            (each.path / MARKER).unlink()
        shutil.rmtree(each.path, ignore_errors=True)
