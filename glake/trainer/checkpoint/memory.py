"""The last state in host memory outside the rank's process, so that a killed rank loses only one
step.

Each rank has two files in /dev/shm and writes them in turn, so that one is whole at any time. A
second file beside each says what the first one holds. It is absent while the first one is written.
A rank begins with step g + 1 only when every rank is done with g. So there is always a step that
all of them have whole. The idea is that of Flash Checkpoint of DLRover.

The folder is private to the user and named by the run. Its owner is the process that outlives the
ranks (torchrun's agent). If the owner is gone, the next job removes the folder, except its own
run's and those from which another run would go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glake import files
from glake.errors import GlakeError, NoRoom
from glake.trainer.checkpoint import disk
from glake.trainer.checkpoint.host import Layout, checksum
from glake.trainer.checkpoint.signature import Signature
from glake.trainer.ranks import ticks_at_start

LOCK = ".lock"  # in a folder of checkpoints
ROOT = Path("/dev/shm")
_PREFIX = "glake-trainer-"
_OWNER = "owner"
_HOME = "home"  # the file that names the run's folder of checkpoints
_NOBODY = "kept until the run goes on"


@dataclass(frozen=True)
class Header:
    """The content of the file beside a state. That file exists once the state is whole."""

    step: int
    sum: int
    notes: dict[str, Any]
    signature: Signature
    entries: list[Any]  # of its layout


class File:
    """One of a rank's two files: the bytes of a state."""

    def __init__(self, path: Path) -> None:
        """Reads the file and its header, if they exist."""
        self.path, self._beside = path, path.with_suffix(f"{path.suffix}.json")
        self.layout: Layout | None = None
        self.header: Header | None = None  # None where no whole state is in it
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            header = Header(**json.loads(self._beside.read_text()))
            if isinstance(header.step, int) and isinstance(header.notes, dict):
                self._open(Layout(header.entries))
                self.header = header

    def _open(self, layout: Layout) -> None:
        whole = max(1, layout.bytes)  # an empty file cannot be mapped
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(handle).st_size != whole:
                os.ftruncate(handle, 0)
                os.posix_fallocate(handle, 0, whole)  # else a write could end the process
        finally:
            os.close(handle)
        memory = torch.from_file(str(self.path), shared=True, size=whole, dtype=torch.uint8)
        self.memory, self.layout = memory[: layout.bytes], layout

    def make(self, layout: Layout) -> None:
        """Makes room for a state of this layout. The caller then writes the state. Raises
        NoRoom."""
        self.clear()
        if self.layout is None or self.layout.entries != layout.entries:
            with self._no_room(layout):
                self._open(layout)

    @contextlib.contextmanager
    def _no_room(self, layout: Layout) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.path.unlink(missing_ok=True)
            self.layout = None
            free = shutil.disk_usage(self.path.parent).free
            raise NoRoom(
                f"{self.path.parent}: {error.strerror}; a rank's state in memory takes twice "
                f"{layout.bytes} bytes, {free} are free: enlarge it (docker run --shm-size), or "
                "set checkpoint.memory=false"
            ) from None

    def read(self) -> dict[str, torch.Tensor] | None:
        """The tensors, as views of the file's own memory. None if they have changed since they were
        written."""
        if self.header is None or self.layout is None:
            return None
        whole = checksum(self.memory) == self.header.sum
        return self.layout.tensors(self.memory) if whole else None

    def clear(self) -> None:
        """Says that the file has no whole state from now on."""
        self.header = None
        self._beside.unlink(missing_ok=True)

    def seal(self, step: int, notes: dict[str, Any], signature: Signature) -> None:
        """Says that the file now holds a whole state, after `step` steps. Raises NoRoom."""
        assert self.layout is not None
        header = Header(step, checksum(self.memory), notes, signature, self.layout.entries)
        with self._no_room(self.layout):
            files.write_whole(self._beside, json.dumps(vars(header)))
        self.header = header


class Memory:
    """A rank's part of the last two states of a run."""

    def __init__(self, run: str, home: Path, rank: int, ranks: int) -> None:
        """Opens the run's files that exist. `home` is its folder of checkpoints. Raises GlakeError
        for a folder of another user."""
        self.folder, self._ranks = folder_of(run), ranks
        _require_private(self.folder)
        files.write_whole(self.folder / _HOME, os.fsencode(home))
        if not self.outlives:
            self.own()
        self.files = [File(self.folder / f"{rank}of{ranks}.{half}") for half in (0, 1)]

    def whole(self) -> dict[int, File]:
        """For each step the file that has the whole state."""
        return {each.header.step: each for each in self.files if each.header is not None}

    def of_others(self) -> tuple[int, int]:
        """(step, ranks) of the newest state of another number of ranks; (0, 0) if there is none."""
        others = (each for each in _states(self.folder) if each[1] != self._ranks)
        return max(others, default=(0, 0))

    def begin(self, layout: Layout) -> File:
        """The file to write next: the one with the older state, or with none. The other one stays
        whole. Raises NoRoom."""
        for path in self.folder.glob("*of*.[01]"):
            if _ranks_of(path) != self._ranks:  # left when the run had another number of ranks
                path.with_suffix(f"{path.suffix}.json").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
        chosen = min(self.files, key=lambda each: each.header.step if each.header else 0)
        chosen.make(layout)
        return chosen

    def forget_after(self, step: int) -> None:
        """Drops states of later steps, because the run goes on from this one."""
        for later, each in self.whole().items():
            if later > step:
                each.clear()

    def own(self) -> None:
        """Makes this run's states end with the process that started the ranks."""
        under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
        self._owned_by(_process(os.getppid() if under_torchrun else os.getpid()))

    def outlive(self) -> None:
        """Makes the states stay until own(), whichever process ends, because they are the only
        copy."""
        self._owned_by(_NOBODY)

    @property
    def outlives(self) -> bool:
        """Whether outlive() was called after the last own()."""
        return _owner_of(self.folder) == _NOBODY

    def _owned_by(self, owner: str) -> None:
        files.write_whole(self.folder / _OWNER, owner)

    def remove(self) -> None:
        """Removes all states, because the run has ended."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _ranks_of(path: Path) -> int:
    """The number of ranks in the name of a File, or of the file beside it. 0: there is none."""
    count = path.name.partition(".")[0].rpartition("of")[2]
    return int(count) if count.isdecimal() else 0


def _states(folder: Path) -> Iterator[tuple[int, int]]:
    """(step, ranks) of each state in the folder."""
    for path in folder.glob("*of*.[01].json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            if path.with_suffix("").exists():
                yield int(json.loads(path.read_text())["step"]), _ranks_of(path)


def run_in(home: Path) -> str:
    """The name of the run whose checkpoints are in this folder. A copy of the folder has another
    name. Raises OSError if no job has taken the folder yet."""
    found = (home / LOCK).stat()
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}"


def folder_of(run: str) -> Path:
    """The folder of a run's states."""
    return ROOT / f"{_PREFIX}{os.getuid()}-{run}"


def sweep(keep: str) -> tuple[list[Path], dict[Path, Path]]:
    """Removes the folders of this user's jobs whose owner is gone, except that of the run `keep`
    and those from which a run would go on. Returns the removed folders, and the kept ones with the
    folders of their runs' checkpoints."""
    gone, kept = [], {}
    for folder in sorted(ROOT.glob(f"{_PREFIX}{os.getuid()}-*")):
        owner = _owner_of(folder)
        pid, _, namespace = owner.split() if owner.count(" ") == 2 else ("", "", "")
        ended = pid.isdigit() and owner != _process(int(pid)) and namespace == _namespace()
        if folder == folder_of(keep) or not ended:
            continue
        with contextlib.suppress(GlakeError, OSError):
            _require_private(folder)
            home = _home_of(folder)
            if home is not None and _is_newest(folder, home):
                kept[folder] = home
            else:
                shutil.rmtree(folder)
                gone.append(folder)
    return gone, kept


def _home_of(folder: Path) -> Path | None:
    """The folder of checkpoints of the run that these states are of; None if it is gone."""
    try:
        home = Path(os.fsdecode((folder / _HOME).read_bytes()))
        return home if folder_of(run_in(home)) == folder else None
    except (OSError, ValueError):
        return None


def _is_newest(folder: Path, home: Path) -> bool:
    """Whether the run has no checkpoint on disk that is as new as its state in memory."""
    on_disk = (each.step for each in disk.found_in(home) if each.problem is None)
    return max(_states(folder), default=(0, 0))[0] > max(on_disk, default=0)


def _process(pid: int) -> str:
    """A name for a process. No other process has it, not even one that had the same number."""
    return f"{pid} {ticks_at_start(pid)} {_namespace()}"


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _owner_of(folder: Path) -> str:
    try:
        return (folder / _OWNER).read_text(errors="replace")
    except OSError:
        return ""


def _require_private(folder: Path) -> None:
    """Makes the folder. Raises GlakeError if the folder is another user's, or others may enter
    it."""
    try:
        problem = files.not_private(folder)
    except OSError as error:
        problem = f"{folder}: {error.strerror}"
    if problem:
        raise GlakeError(
            f"{folder} is no private folder: {problem}; remove it, or set checkpoint.memory=false"
        )
