"""The last state in host memory outside the rank's process, so that a killed rank loses one step.

Each rank has two files in /dev/shm and writes them in turn, so that one is whole at any time. What
a file holds is said in another beside it, which is not there while the first is written. A rank
begins with step g + 1 only when every rank is done with g: then there is always a step that all of
them have whole. Idea: Flash Checkpoint of DLRover.

The folder is private to the user, named by the run, and owned by the process that outlives the
ranks (torchrun's agent). What a dead owner left is swept by the next job, unless it is this run's.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glake import files
from glake.errors import GlakeError, NoRoom
from glake.trainer.checkpoint.host import Layout, checksum
from glake.trainer.checkpoint.signature import Signature
from glake.trainer.process import ticks_at_start

ROOT = Path("/dev/shm")
_PREFIX = "glake-trainer-"
_OWNER = "owner.json"
_YOUNG_S = 60.0  # a folder without an owner is being made


@dataclass(frozen=True)
class _Header:
    """What the file beside a state says of it, once it is whole."""

    step: int
    sum: int
    notes: dict[str, Any]
    signature: Signature | None = None  # states of earlier versions have none


class _File:
    """One of a rank's two: the bytes of a state."""

    def __init__(self, path: Path, signature: Signature) -> None:
        """What is there of it, if anything. `signature`: of the states that it will hold."""
        self.path, self._signature = path, signature
        self.layout: Layout | None = None
        self._header: _Header | None = None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            told = json.loads(self._beside.read_text())
            layout = Layout(told.pop("entries"))
            header = _Header(**told)
            told_right = isinstance(header.step, int) and isinstance(header.notes, dict)
            if told_right and path.stat().st_size == max(1, layout.bytes):
                self._open(layout)
                self._header = header

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(self.path.suffix + ".json")

    def _open(self, layout: Layout) -> None:
        whole = max(1, layout.bytes)  # nothing cannot be mapped
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self.path, flags, 0o600)
        try:
            if os.fstat(handle).st_size != whole:
                os.ftruncate(handle, 0)
                os.posix_fallocate(handle, 0, whole)  # or a write to it would end the process
            memory = mmap.mmap(handle, whole)
        finally:
            os.close(handle)
        self.payload = np.frombuffer(memory, np.uint8, layout.bytes)
        self.layout = layout

    def make(self, layout: Layout) -> None:
        """Room for such a state, which is being written from here on. NoRoom."""
        self.clear()
        if self.layout is not None and self.layout.entries == layout.entries:
            return
        try:
            self._open(layout)
        except OSError as error:
            self.path.unlink(missing_ok=True)
            self.layout = None
            raise self._no_room(error, layout) from None

    def _no_room(self, error: OSError, layout: Layout) -> NoRoom:
        free = shutil.disk_usage(self.path.parent).free
        return NoRoom(
            f"{self.path.parent}: {error.strerror}; a rank's state in memory takes twice "
            f"{layout.bytes} bytes, {free} are free: enlarge it (docker run --shm-size), or "
            "set checkpoint.memory=false"
        )

    def header(self) -> _Header | None:
        """None where no whole state is in it."""
        return self._header

    def read(self) -> dict[str, Any] | None:
        """The tensors, over the file's own memory, if they are as they were put there."""
        if self._header is None or self.layout is None:
            return None
        whole = checksum(self.payload) == self._header.sum
        return self.layout.parts(self.payload) if whole else None

    def clear(self) -> None:
        """No whole state is in it from here on."""
        self._header = None
        self._beside.unlink(missing_ok=True)

    def seal(self, step: int, notes: dict[str, Any]) -> None:
        """Its payload is whole: a state after `step` steps. NoRoom."""
        assert self.layout is not None
        header = _Header(step, checksum(self.payload), notes, self._signature)
        told = vars(header) | {"entries": self.layout.entries}
        try:
            files.write_whole(self._beside, json.dumps(told))
        except OSError as error:
            raise self._no_room(error, self.layout) from None
        self._header = header


class Memory:
    """A rank's part of the last two states of a run."""

    def __init__(
        self, run: str, rank: int, ranks: int, signature: Signature, root: Path | None = None
    ) -> None:
        """Opens what is there of this run. `signature`: that of the states it will keep.
        GlakeError for a folder of another user's."""
        self.folder = folder_of(run, root)
        _require_private(self.folder)
        self._ranks, self._alone = ranks, False
        paths = [self.folder / f"{rank}of{ranks}.{half}" for half in (0, 1)]
        self.files = [_File(path, signature) for path in paths]

    def whole(self) -> dict[int, tuple[_File, _Header]]:
        """Step -> (the file that has its state whole, what is said of it)."""
        headers = ((each, each.header()) for each in self.files)
        return {header.step: (each, header) for each, header in headers if header is not None}

    def steps(self) -> list[int]:
        """Of which steps there is a whole state."""
        return list(self.whole())

    def begin(self, layout: Layout) -> _File:
        """The file of the older state, or of none: the other one stays whole. NoRoom."""
        if not self._alone:
            self._forget_other_counts()
        steps = {each: step for step, (each, _) in self.whole().items()}
        chosen = min(self.files, key=lambda each: steps.get(each, 0))
        chosen.make(layout)
        return chosen

    def _forget_other_counts(self) -> None:
        """The run goes on at this number of ranks: what others left is of another course of it."""
        self._alone = True
        for path in self.folder.glob("*of*.[01]"):
            if path.name.partition("of")[2][:-2] != str(self._ranks):
                path.unlink(missing_ok=True)

    def forget_after(self, step: int) -> None:
        """Drops states of later steps: the run goes on from this one."""
        for later, (each, _) in self.whole().items():
            if later > step:
                each.clear()

    def own(self) -> None:
        """This run's segments live as long as the process that started the ranks."""
        pid = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
        began = str(ticks_at_start(pid))
        self._owned_by({"pid": pid, "started": began, "namespace": _namespace()})

    def outlive(self) -> None:
        """They stay until own(), whoever ends: they hold what is nowhere else."""
        self._owned_by({"kept": True})

    @property
    def outlives(self) -> bool:
        """Whether outlive() was the last word on them."""
        return "kept" in _owner_of(self.folder)

    def _owned_by(self, owner: dict[str, Any]) -> None:
        files.write_whole(self.folder / _OWNER, json.dumps(owner))

    def remove(self) -> None:
        """The run has ended: nothing of it stays."""
        shutil.rmtree(self.folder, ignore_errors=True)


def folder_of(run: str, root: Path | None = None) -> Path:
    """Where the states of a run lie."""
    return (root or ROOT) / f"{_PREFIX}{os.getuid()}-{run}"


def sweep(keep: str, root: Path | None = None) -> list[Path]:
    """Removes what jobs of this user left whose owner is gone, but for the run `keep`."""
    gone = []
    for folder in sorted((root or ROOT).glob(f"{_PREFIX}{os.getuid()}-*")):
        if folder == folder_of(keep, root) or not _abandoned(folder):
            continue
        with contextlib.suppress(GlakeError, OSError):
            _require_private(folder)
            shutil.rmtree(folder)
            gone.append(folder)
    return gone


def _abandoned(folder: Path) -> bool:
    owner = _owner_of(folder)
    if "kept" in owner:
        return False
    if {"pid", "started", "namespace"} <= owner.keys():
        gone = str(ticks_at_start(owner["pid"])) != owner["started"]
        return bool(gone and owner["namespace"] == _namespace())
    with contextlib.suppress(OSError):
        return time.time() - folder.stat().st_mtime > _YOUNG_S
    return False


def _owner_of(folder: Path) -> dict[str, Any]:
    """What its owner.json says; empty where that is not there, or not as it was written."""
    try:
        owner = json.loads((folder / _OWNER).read_text())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _require_private(folder: Path) -> None:
    """Makes it; refuses one that is another user's, or that others may enter."""
    try:
        problem = files.not_private(folder)
    except OSError as error:
        problem = f"{folder}: {error.strerror}"
    if problem:
        raise GlakeError(
            f"{folder} is no private folder: {problem}; remove it, or set checkpoint.memory=false"
        )
