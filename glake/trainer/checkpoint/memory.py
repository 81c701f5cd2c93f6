"""The last state in host memory outside the rank's process, so that a killed rank loses one step.

Each rank has two files in /dev/shm and writes them in turn, so that one is whole at any time. The
header's step is 0 while a file is written, and set last. A rank begins with step g + 1 only when
every rank is done with g: then there is always a step that all of them have whole. Idea: Flash
Checkpoint of DLRover.

The folder is private to the user, named by the run, and owned by the process that outlives the
ranks (torchrun's agent). What a dead owner left is swept by the next job, unless it is this run's.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glake.errors import GlakeError, NoRoom
from glake.trainer.checkpoint.host import Layout, checksum
from glake.trainer.checkpoint.signature import Signature

ROOT = Path("/dev/shm")
_PREFIX = "glake-trainer-"
_HEADER = struct.Struct("<8sQQQ32sI")  # magic, step, payload bytes, checksum, digest, notes' bytes
_MAGIC = b"glakeST1"
_PAYLOAD = 4096  # where it begins; what the header leaves of this is for the notes
_YOUNG_S = 60.0  # a folder without an owner is being made


@dataclass(frozen=True)
class _Header:
    step: int
    sum: int
    digest: bytes
    notes: dict[str, Any]


class _File:
    """One of a rank's two, with its layout beside it."""

    def __init__(self, path: Path) -> None:
        """What is there of it, if anything."""
        self.path = path
        self.layout: Layout | None = None
        self.signature: Signature | None = None
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            beside = json.loads(self._beside.read_text())
            if isinstance(beside, list):  # of a version without signatures
                beside = {"entries": beside}
            self.signature = beside.get("signature")
            layout = Layout(beside["entries"])
            if path.stat().st_size == _PAYLOAD + layout.bytes:
                self._open(layout)

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(self.path.suffix + ".json")

    def _open(self, layout: Layout) -> None:
        whole = _PAYLOAD + layout.bytes
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self.path, flags, 0o600)
        try:
            if os.fstat(handle).st_size != whole:
                os.ftruncate(handle, 0)
                os.posix_fallocate(handle, 0, whole)  # or a write to it would end the process
            self._map = mmap.mmap(handle, whole)
        finally:
            os.close(handle)
        self.payload = np.frombuffer(self._map, np.uint8, layout.bytes, _PAYLOAD)
        self.layout = layout

    def make(self, layout: Layout, signature: Signature) -> None:
        """Room for such a state, which is being written from here on. NoRoom."""
        if self.layout is not None:
            self.clear()
        if self.layout is not None and self.layout.digest == layout.digest:
            return
        try:
            self._open(layout)
            self.clear()
            fresh = self._beside.with_suffix(".new")
            with open(fresh, "w", opener=_private_file) as file:
                json.dump({"entries": layout.entries, "signature": signature}, file)
            fresh.replace(self._beside)
            self.signature = signature
        except OSError as error:
            self.path.unlink(missing_ok=True)
            self.layout = None
            free = shutil.disk_usage(self.path.parent).free
            raise NoRoom(
                f"{self.path.parent}: {error.strerror}; a rank's state in memory takes twice "
                f"{_PAYLOAD + layout.bytes} bytes, {free} are free: enlarge it (docker run "
                "--shm-size), or set checkpoint.memory=false"
            ) from None

    def header(self) -> _Header | None:
        """None where no whole state is in it."""
        if self.layout is None:
            return None
        magic, step, size, total, digest, length = _HEADER.unpack_from(self._map)
        if magic != _MAGIC or step == 0 or size != self.layout.bytes:
            return None
        if digest != self.layout.digest or length > _PAYLOAD - _HEADER.size:
            return None
        try:
            notes = json.loads(self._map[_HEADER.size : _HEADER.size + length])
        except ValueError:
            return None
        return _Header(step, total, digest, notes)

    def clear(self) -> None:
        """No whole state is in it from here on."""
        struct.pack_into("<Q", self._map, 8, 0)

    def seal(self, step: int, notes: dict[str, Any]) -> None:
        """Its payload is whole: a state after `step` steps."""
        assert self.layout is not None
        text = json.dumps(notes).encode()
        assert len(text) <= _PAYLOAD - _HEADER.size
        self._map[_HEADER.size : _HEADER.size + len(text)] = text
        facts = (self.layout.bytes, checksum(self.payload), self.layout.digest, len(text))
        _HEADER.pack_into(self._map, 0, _MAGIC, 0, *facts)
        struct.pack_into("<Q", self._map, 8, step)


class Memory:
    """A rank's part of the last two states of a run."""

    def __init__(
        self, run: str, rank: int, ranks: int, signature: Signature, root: Path | None = None
    ) -> None:
        """Opens what is there of this run. `signature`: that of the states it will keep.
        GlakeError for a folder of another user's."""
        self.folder = folder_of(run, root)
        _private(self.folder)
        self._ranks, self._alone, self._signature = ranks, False, signature
        self.files = [_File(self.folder / f"{rank}of{ranks}.{half}") for half in (0, 1)]

    def steps(self) -> list[int]:
        """Of which steps there is a whole state."""
        return [each.step for each in map(_File.header, self.files) if each is not None]

    def signature(self, step: int) -> Signature | None:
        """What the state of a step is of; None where an earlier version kept it."""
        for each in self.files:
            header = each.header()
            if header is not None and header.step == step:
                return each.signature
        return None

    def notes(self, step: int) -> dict[str, Any]:
        """What is noted beside the state of a step."""
        headers = [header for header in map(_File.header, self.files) if header is not None]
        return next((header.notes for header in headers if header.step == step), {})

    def begin(self, layout: Layout) -> _File:
        """The file of the older state, or of none: the other one stays whole. NoRoom."""
        if not self._alone:
            self._forget_other_counts()
        steps = [each.step if each is not None else 0 for each in map(_File.header, self.files)]
        chosen = self.files[int(steps[1] < steps[0])]
        chosen.make(layout, self._signature)
        return chosen

    def _forget_other_counts(self) -> None:
        """The run goes on at this number of ranks: what others left is of another course of it."""
        self._alone = True
        for path in self.folder.glob("*of*.[01]"):
            if path.name.partition("of")[2][:-2] != str(self._ranks):
                path.unlink(missing_ok=True)

    def read(self, step: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """(tensors, notes) of a step, if its checksum is right."""
        for each in self.files:
            header = each.header()
            if header is not None and header.step == step and checksum(each.payload) == header.sum:
                assert each.layout is not None
                return each.layout.parts(each.payload), header.notes
        return None

    def forget_after(self, step: int) -> None:
        """Drops states of later steps: the run goes on from this one."""
        for each in self.files:
            header = each.header()
            if header is not None and header.step > step:
                each.clear()

    def own(self) -> None:
        """This run's segments live as long as the process that started the ranks; those that
        outlive() was asked for do until released()."""
        if not _kept(self.folder):
            self._owned_by(_owner())

    def released(self) -> None:
        """What outlived its process is on disk now."""
        if _kept(self.folder):
            self._owned_by(_owner())

    def outlive(self) -> None:
        """They stay until this run goes on, whoever ends: they hold what is nowhere else."""
        self._owned_by({"kept": True})

    def _owned_by(self, owner: dict[str, Any]) -> None:
        path = self.folder / "owner.json"
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(owner))
        fresh.replace(path)

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
            _private(folder)
            shutil.rmtree(folder)
            gone.append(folder)
    return gone


def _abandoned(folder: Path) -> bool:
    try:
        owner = json.loads((folder / "owner.json").read_text())
        return not _kept(folder) and bool(
            owner["namespace"] == _namespace() and _started(owner["pid"]) != owner["started"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        with contextlib.suppress(OSError):
            return time.time() - folder.stat().st_mtime > _YOUNG_S
        return False


def _kept(folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return "kept" in json.loads((folder / "owner.json").read_text())
    return False


def _owner() -> dict[str, Any]:
    pid = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()
    return {"pid": pid, "started": _started(pid), "namespace": _namespace()}


def _started(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _private_file(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _private(folder: Path) -> None:
    """Makes it; refuses one that is another user's, or that others may enter."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise GlakeError(
            f"{folder} is no private folder of user {os.getuid()}: remove it, or set "
            "checkpoint.memory=false"
        )
