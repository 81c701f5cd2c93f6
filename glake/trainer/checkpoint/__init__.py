"""Checkpoints of a run: its last state in memory, older ones on disk, and the way back.

The state is copied to host memory while the next step computes. The step stalls only if the copy is
not done when its optimizer step is due. A thread writes the copy to disk. If the run is killed at
any time, it goes on from the newest state that every rank has whole.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from glake import files
from glake.errors import (
    CheckpointMismatch,
    FolderInUse,
    InvalidOption,
    NoRoom,
    NotWritten,
    NoWholeCheckpoint,
)
from glake.trainer.checkpoint import disk, memory
from glake.trainer.checkpoint.host import HostCopy, Layout, host_memory
from glake.trainer.checkpoint.signature import Signature, compare
from glake.trainer.configurable import Configurable, Count, Natural
from glake.trainer.fsdp.collectives import everyones
from glake.trainer.fsdp.state import Part, State

_LOCK_S = 30.0  # waits for the folder's lock: a killed rank 0 may still hold it
_PAUSES_S = (5.0, 10.0, 20.0)  # between attempts to save the last state: the user can make room


@dataclass(frozen=True)
class Resumed:
    """The place from which a run goes on."""

    source: str  # of the state: "memory" or "disk"
    step: int
    notes: dict[str, Any]


class Checkpoint(Configurable):
    """The checkpoints of a run, on every rank."""

    class Config(Configurable.Config):
        folder: str = ""  # on a file system that all ranks share; "": no checkpoints are kept
        every: Natural = 100  # steps between checkpoints on disk; 0: only the last state is saved
        keep: Count = 2  # checkpoints on disk
        memory: bool = True  # the last state in /dev/shm as well
        memory_every: Count = 1  # steps between states in memory

    def __init__(
        self,
        config: Config,
        *,
        group: Any,
        say: Callable[[str], None],
        text: str,
        signature: Signature,
    ) -> None:
        """Takes the folder. `group` is a gloo group of all ranks that nobody else uses. `say` is
        called with what the user should know. `text` is the experiment's config. `signature` says
        which experiment the states belong to. Raises FolderInUse or InvalidOption."""
        super().__init__(config)
        self.stall_s = 0.0  # seconds for which checkpoints have stalled steps so far
        self._group, self._say, self._text = group, say, text
        self._signature = signature
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._folder = Path(os.path.expanduser(config.folder)).absolute()
        self._memory: memory.Memory | None = None
        self._copies = ThreadPoolExecutor(1, "glake-copy")
        self._writes = ThreadPoolExecutor(1, "glake-checkpoint")
        self._copied: list[Future[None]] = []
        self._written: Future[None] | None = None
        self._on_disk = 0  # the step of the newest checkpoint that is whole
        self._refused = ""  # why the last checkpoint could not be written
        self._lock = -1
        self.run = self._entered() if config.folder else ""  # the run's name

    # --- Beginning ---

    def _entered(self) -> str:
        """Takes the folder for this job. Returns the run's name."""
        told: Any = None
        if self._rank == 0:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._lock = _locked(self._folder / memory.LOCK, self._say)
                told = memory.run_in(self._folder)
            except (OSError, FolderInUse) as error:
                told = error
        told = everyones(told, self._group)[0]
        if isinstance(told, FolderInUse):
            raise told
        if isinstance(told, OSError):
            raise InvalidOption(f"checkpoint.folder = {self.config.folder!r}: {told}")
        return str(told)

    def resume(self, state: State, optimizer: Any) -> Resumed | None:
        """Loads the newest whole state. Returns None if there is no state, so that the run begins.

        Later checkpoints are of `state` and `optimizer`. Raises NoWholeCheckpoint or
        CheckpointMismatch.
        """
        self._state, self._optimizer = state, optimizer
        if not self.config.folder:
            return None
        there: list[disk.Found] = []
        if self._rank == 0:
            disk.remove_partial(self._folder, self._say)
            there = disk.found_in(self._folder)
        found = everyones(there, self._group)[0]
        return self._from_memory(found) or self._from_disk(found)

    def _from_memory(self, on_disk: list[disk.Found]) -> Resumed | None:
        if not self.config.memory:
            # States that an earlier start left in memory would be older than this run's
            # checkpoints.
            if _first_here():
                shutil.rmtree(memory.folder_of(self.run), ignore_errors=True)
            return None
        self._memory = memory.Memory(self.run, self._folder, self._rank, self._ranks)
        gone, kept = memory.sweep(self.run) if _first_here() else ([], {})
        for path in gone:
            self._say(f"{path} was left by a job that is gone: removed")
        for path, home in kept.items():
            self._say(
                f"{path} was left by a job that is gone, and has the last state of the run in "
                f"{home}: kept until that run ends; if it is not to go on, remove {path}"
            )
        mine = self._memory.whole()
        common = set.intersection(*map(set, everyones(list(mine), self._group)))
        found = None
        for step in sorted(common, reverse=True):
            if step < max((each.step for each in on_disk), default=0):
                break
            header, read = mine[step].header, mine[step].read()
            assert header is not None
            self._compare(header.signature, f"the state of step {step} in memory")
            if all(everyones(read is not None, self._group)):
                self._state.load(read or {}, self._optimizer)
                found = Resumed("memory", step, header.notes)
                break
            self._say(f"the state of step {step} in memory is damaged")
        self._on_disk = max((each.step for each in on_disk if each.problem is None), default=0)
        self._tell_of_others(max(self._on_disk, found.step if found else 0))
        self._memory.forget_after(found.step if found else 0)
        return found

    def _tell_of_others(self, step: int) -> None:
        """Says that a newer state in memory belongs to another number of ranks, and is not used.

        Raises CheckpointMismatch if it is the only copy, because the disk was full when the job
        ended.
        """
        assert self._memory is not None
        told = everyones((*self._memory.of_others(), self._memory.outlives), self._group)
        newest, count, outlives = max(told)
        if newest <= step:
            return
        state = f"the state of step {newest} in memory is of {count} ranks, and this job has"
        if outlives:
            raise CheckpointMismatch(
                f"{state} {self._ranks}; it is nowhere else: make room, and run the same command "
                f"with {count} ranks, which writes it to disk for any number, or drop it by "
                "checkpoint.memory=false"
            )
        self._say(f"{state} {self._ranks}: not used; only checkpoints on disk suit any number")

    def _from_disk(self, found: list[disk.Found]) -> Resumed | None:
        damaged = []
        for each in found:
            wrong = everyones(disk.damage(each, self._rank, self._ranks), self._group)
            if problem := next(filter(None, wrong), None):
                self._say(f"the checkpoint {each.path} is damaged: not used ({problem})")
                damaged.append(each.path)
                continue
            self._compare(each.marker["signature"], f"the checkpoint {each.path}")
            disk.read(each, self._state, self._optimizer, self._group)
            for path in damaged if self._rank == 0 else ():
                disk.set_aside(path, "damaged")
            self._on_disk = each.step
            return Resumed("disk", each.step, dict(each.marker["notes"]))
        if found:
            raise NoWholeCheckpoint(
                f"{self._folder}: none of its {len(found)} checkpoints is whole any more; bring "
                "one back, or begin anew in another checkpoint.folder"
            )
        return None

    def _compare(self, saved: Signature, state: str) -> None:
        if other := compare(saved, self._signature, state):
            self._say(f"{state} was made otherwise: {other}")

    # --- Going on ---

    def after_step(self, step: int, notes: dict[str, Any]) -> None:
        """Begins to copy the state, if one is due after `step` steps. Until settle() returns, no
        parameter and no optimizer state may change."""
        began, every = time.perf_counter(), self.config.every
        keep = step % self.config.memory_every == 0
        self._take(step, notes, keep, every > 0 and step % every == 0)
        self.stall_s += time.perf_counter() - began

    def _take(
        self, step: int, notes: dict[str, Any], keep: bool, save: bool, last: bool = False
    ) -> None:
        """Keeps the state in memory, and saves it to disk."""
        keep, save = keep and self._memory is not None, save and bool(self.config.folder)
        if save:
            self._await_written()  # every rank writes at most one checkpoint at a time
        if keep or save:
            parts = self._state.parts(self._optimizer)
            layout = Layout.of(parts)
            if keep:
                self._keep(step, notes, parts, layout)
            if save:
                marker = {"step": step, "notes": notes, "signature": self._signature}
                self._save(marker, parts, layout, _PAUSES_S if last else ())

    def _keep(
        self, step: int, notes: dict[str, Any], parts: dict[str, Part], layout: Layout
    ) -> None:
        assert self._memory is not None
        try:
            file = self._memory.begin(layout)
        except NoRoom as error:
            self._end_memory(error)
            return
        copy = HostCopy(parts, layout, file.memory)

        def finish() -> None:
            copy.finish()
            file.seal(step, notes, self._signature)

        self._copied.append(self._copies.submit(finish))

    def _end_memory(self, error: NoRoom) -> None:
        self._say(f"no state is kept in memory from here on: {error}")
        if self._memory is not None:
            self._memory.forget_after(0)
            self._memory = None

    def _save(
        self,
        marker: dict[str, Any],
        parts: dict[str, Part],
        layout: Layout,
        pauses: tuple[float, ...],
    ) -> None:
        """Saves a state. If the disk refuses it, tries again after each of the times `pauses`."""
        host, held = host_memory(layout, parts), self._memory
        copied = self._copies.submit(HostCopy(parts, layout, host).finish)
        self._copied.append(copied)

        def write() -> None:
            copied.result()
            whole = self._state.complete(layout.tensors(host), self._group)
            for pause in (*pauses, 0.0):
                try:
                    self._write(marker, whole)
                except NotWritten as error:
                    self._refused = str(error)
                    if pause:
                        self._say(f"{error}. Make room: it is tried again in {pause:g} s")
                        time.sleep(pause)
                    elif not pauses:
                        self._say(f"{error}. The run goes on; older checkpoints are as they were")
                else:
                    if held is not None and held.outlives:
                        held.own()  # the state that had outlived its job is on disk now
                    return

        self._written = self._writes.submit(write)

    def _write(self, marker: dict[str, Any], whole: dict[str, Any]) -> None:
        disk.write(self._folder, marker, whole, self._group, self._text)
        self._on_disk = marker["step"]
        if self._rank == 0:
            disk.prune(self._folder, self.config.keep)

    def settle(self) -> None:
        """Waits until the state that is being copied is whole on this rank. It is called before the
        last collective before the optimizer's step, so that no rank gets a state ahead of
        others."""
        began = time.perf_counter()
        copied, self._copied = self._copied, []
        for each in copied:
            try:
                each.result()
            except NoRoom as error:
                self._end_memory(error)
        self.stall_s += time.perf_counter() - began

    def _await_written(self) -> None:
        if self._written is not None:
            self._written.result()

    def interrupted(self) -> str:
        """Says what is kept of a run that the user interrupts. A job of one rank writes its last
        state to disk. With several ranks it is not known whether all of them were interrupted."""
        if not self.config.folder:
            return "nothing of the run is kept, as no checkpoint.folder is set"
        self.settle()
        kept = {} if self._memory is None else self._memory.whole()
        step, problem = max(kept, default=0), ""
        if self._ranks == 1:
            self._await_written()
            if step > self._on_disk:
                problem = self._write_kept(kept[step])
        if step > self._on_disk:
            return f"the same command goes on after step {step}, from memory{problem}"
        if self._on_disk:
            path = disk.path_of(self._folder, self._on_disk)
            return f"the same command goes on after step {self._on_disk}, from {path}"
        return "there is no checkpoint yet: the same command starts from the beginning"

    def _write_kept(self, file: memory.File) -> str:
        """Writes a state in memory to disk. If it cannot, it returns the reason in words."""
        header, state = file.header, file.read()
        if header is None or state is None:
            return ""
        marker = {"step": header.step, "notes": header.notes, "signature": header.signature}
        try:
            self._write(marker, self._state.complete(state, self._group))
        except NotWritten as error:
            return f" until the machine ends ({error})"
        return ""

    def finish(self, step: int, notes: dict[str, Any]) -> None:
        """Ends the run: its last state goes to disk, and nothing stays in memory. Raises NotWritten
        if the disk does not take the state. Then the state stays in memory, and the same command
        writes it later."""
        if not self.config.folder:
            return
        self.settle()
        self._await_written()
        if self._on_disk != step:
            keep = self._memory is not None and step not in self._memory.whole()
            self._take(step, notes, keep, save=True, last=True)
            self.settle()
            self._await_written()
        kept = all(everyones(self._memory is not None, self._group))  # waits for every rank
        if self._on_disk != step:
            where = "Older checkpoints are as they were"
            if kept and self._memory is not None:
                self._memory.outlive()
                where = (
                    f"The state is kept in {self._memory.folder}: make room, and run the same "
                    "command again, which writes it"
                )
            raise NotWritten(f"{self._refused}. {where}")
        if self._memory is not None:
            self._memory.remove()
        self.close()

    def close(self) -> None:
        """Ends the threads once they are idle, and frees the folder."""
        self._copies.shutdown(wait=False)
        self._writes.shutdown(wait=False)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _first_here() -> bool:
    """Whether this rank speaks for the ranks of its machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _locked(path: Path, say: Callable[[str], None]) -> int:
    end, told = time.monotonic() + _LOCK_S, False
    while (held := files.lock(path)) is None:
        if not told:
            say(f"{path.parent} is another job's: waits up to {_LOCK_S:g} s for it to end")
            told = True
        if time.monotonic() > end:
            raise FolderInUse(
                f"{path.parent}: another job keeps its checkpoints here; end it, or set another "
                "checkpoint.folder"
            )
        time.sleep(0.05)
    return held
