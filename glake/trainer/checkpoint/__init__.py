"""Checkpoints of a run: its last state in memory, older ones on disk, and the way back.

The step stalls only for what is left of the copy to host memory when the next optimizer step is
due; a thread writes the rest. Killed at any time, the run goes on from the newest state that every
rank has whole.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from glake import files
from glake.errors import FolderInUse, InvalidOption, NoRoom, NotWritten, NoWholeCheckpoint
from glake.trainer.checkpoint import disk, host
from glake.trainer.checkpoint.host import HostCopy, Layout
from glake.trainer.checkpoint.memory import Memory, sweep
from glake.trainer.checkpoint.signature import Signature, compare
from glake.trainer.configurable import Configurable, Count, Natural

if TYPE_CHECKING:
    from glake.trainer.fsdp.sharded import Sharded

_LOCK_S = 30.0  # for a rank 0 that is just being killed
_PAUSES_S = (5.0, 10.0, 20.0)  # for a user to make room for a last state that memory does not hold
_ON_DISK = "newest on disk"  # among the notes in memory: the step of that checkpoint, or 0


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on."""

    source: str  # "memory" or "disk"
    step: int
    notes: dict[str, Any]


class Checkpoint(Configurable):
    """The checkpoints of a run, on every rank."""

    # Of all that it writes in its folder.
    NAMES = (".lock", "run", "run.*.part", "step-[0-9]*/*", "before-*/*")

    @dataclass(kw_only=True)
    class Config(Configurable.Config):
        folder: str = ""  # on a file system that all ranks share; "": no checkpoints
        every: Natural = 100  # steps from one on disk to the next; 0: none on disk but the last
        keep: Count = 2  # on disk
        memory: bool = True  # the last state in /dev/shm as well
        memory_every: Count = 1  # steps
        resume: bool = True  # False: begin anew; what is there is set aside

    def __init__(
        self,
        config: Config,
        *,
        group: Any,
        say: Callable[[str], None],
        text: str,
        signature: Signature,
    ) -> None:
        """Takes the folder. `group`: gloo, of all ranks, used by nobody else; `say` is told what
        the user should know; `text` is the experiment's config; `signature`, what its states are
        of. FolderInUse; InvalidOption."""
        super().__init__(config)
        self.stall_s = 0.0  # of all steps so far
        self._group, self._say, self._text = group, say, text
        self._signature = signature
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._mesh = DeviceMesh.from_group(group, "cpu")
        self._folder = Path(os.path.expanduser(config.folder)).absolute()
        self._memory: Memory | None = None
        self._copies = ThreadPoolExecutor(1, "glake-copy")
        self._writes = ThreadPoolExecutor(1, "glake-checkpoint")
        self._kept: Layout | None = None  # of what goes to memory
        self._copied: list[Future[None]] = []
        self._written: Future[None] | None = None
        self._on_disk = 0  # the step of the newest checkpoint that is whole
        self._refused = ""  # why the last one that was to be written is not there
        self._lock = -1
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        self._anew = not config.resume and not restarted
        self.run = self._entered() if config.folder else ""  # its name
        self._damaged: set[Path] = set()

    # --- Beginning ---

    def _entered(self) -> str:
        """Takes the folder for this job; the run's name, which the folder keeps."""
        told: Any = None
        if self._rank == 0:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._lock = _locked(self._folder / ".lock")
                told = _run_of(self._folder, self._anew)
            except (OSError, FolderInUse) as error:
                told = error
        told = self._gathered(told)[0]
        if isinstance(told, FolderInUse):
            raise told
        if isinstance(told, OSError):
            raise InvalidOption(f"checkpoint.folder = {self.config.folder!r}: {told}")
        return str(told)

    def resume(self, sharded: Sharded, optimizer: Any) -> Resumed | None:
        """Puts the newest whole state in place; None where the run begins.

        NoWholeCheckpoint, CheckpointMismatch.
        """
        if not self.config.folder:
            return None
        try:
            return self._resumed(sharded, optimizer)
        except BaseException:
            self.close()
            raise

    def _resumed(self, sharded: Sharded, optimizer: Any) -> Resumed | None:
        if self.config.memory:
            self._memory = self._opened_memory()
        whole, partial = disk.found_in(self._folder) if self._rank == 0 else ([], [])
        if self._anew and whole:
            aside = self._folder / f"before-{self.run}"
            aside.mkdir()
            for each in whole:
                each.path.rename(aside / each.path.name)
            self._say(f"{len(whole)} checkpoints of an earlier run are in {aside} now")
            whole = []
        for path in partial:
            self._say(f"{path.name} was never finished: removed")
            shutil.rmtree(path, ignore_errors=True)
        whole = self._gathered(whole)[0]
        found = self._from_memory([each.step for each in whole], sharded, optimizer)
        if found is None:
            found = self._from_disk(whole, sharded, optimizer)
        kept = [each.step for each in whole if each.path not in self._damaged]
        self._on_disk = max(kept, default=0)
        if self._memory is not None:
            self._memory.forget_after(found.step if found else 0)
        return found

    def _opened_memory(self) -> Memory:
        memory = Memory(self.run, self._rank, self._ranks, self._signature)
        if _first_here():
            if not memory.outlives:
                memory.own()
            for path in sweep(self.run):
                self._say(f"{path} was left by a job that is gone: removed")
        return memory

    def _from_memory(self, on_disk: list[int], sharded: Sharded, optimizer: Any) -> Resumed | None:
        mine = self._memory.whole() if self._memory is not None else {}
        everyones = self._gathered({step: header.notes for step, (_, header) in mine.items()})
        common = set.intersection(*map(set, everyones))
        known = [each[step].get(_ON_DISK, 0) for each in everyones for step in common]
        if self._taken_back(max(known, default=0), on_disk):
            return None
        for step in sorted(common, reverse=True):
            if step < max(on_disk, default=0):
                break
            file, header = mine[step]
            theirs = next(filter(None, self._gathered(header.signature)), None)
            self._compare(theirs, f"the state of step {step} in memory")
            read = file.read()
            fits = self._gathered(read is not None and host.fits(read, sharded))
            if read is None or not all(fits):
                self._say(f"the state of step {step} in memory is damaged, or of another model")
                continue
            host.put_back(read, sharded, optimizer)
            notes = {name: value for name, value in header.notes.items() if name != _ON_DISK}
            return Resumed("memory", step, notes)
        return None

    def _taken_back(self, newest: int, on_disk: list[int]) -> bool:
        """Whether the newest checkpoint that memory knows of is gone: whoever removed it wants an
        older one, and what memory holds came after it."""
        if newest in on_disk or newest < max(on_disk, default=1):
            return False  # pruned after memory had noted it, if it is older
        self._say(
            f"the checkpoint of step {newest} was removed: what memory holds of later steps is "
            "not used"
        )
        return True

    def _from_disk(
        self, whole: list[disk.Found], sharded: Sharded, optimizer: Any
    ) -> Resumed | None:
        for each in whole:
            damage = disk.damage(each, self._rank, self._ranks)
            if wrong := [one for one in self._gathered(damage) if one]:
                self._say(f"the checkpoint {each.path} is damaged: not used ({wrong[0]})")
                self._damaged.add(each.path)
                continue
            self._compare(each.marker.get("signature"), f"the checkpoint {each.path}")
            disk.read(each, sharded, optimizer, self._group)
            return Resumed("disk", each.step, each.notes)
        if whole:
            raise NoWholeCheckpoint(
                f"{self._folder}: none of its {len(whole)} checkpoints is whole any more; bring "
                "one back, or begin anew with checkpoint.resume=false, which sets them aside"
            )
        return None

    def _compare(self, saved: Signature | None, state: str) -> None:
        if saved is None:
            self._say(
                f"{state} has no signature, as those of earlier versions: its tensors' sizes are "
                "compared, and nothing else"
            )
        else:
            compare(saved, self._signature, state)

    # --- Going on ---

    def after_step(
        self, step: int, sharded: Sharded, optimizer: Any, notes: dict[str, Any]
    ) -> None:
        """Begins to copy the state, if one is due after `step` steps. Until settle() is back, no
        parameter and no optimizer state may change."""
        if not self.config.folder:
            return
        began = time.perf_counter()
        if self._memory is not None and step % self.config.memory_every == 0:
            self._keep(step, sharded, optimizer, notes)
        if self.config.every > 0 and step % self.config.every == 0:
            self._save(step, sharded, optimizer, notes)
        self.stall_s += time.perf_counter() - began

    def _keep(self, step: int, sharded: Sharded, optimizer: Any, notes: dict[str, Any]) -> None:
        """To memory."""
        assert self._memory is not None
        state = host.pieces(sharded, optimizer)
        entries = host.entries_of(state)
        if self._kept is None or self._kept.entries != entries:
            self._kept = Layout(entries)  # not at each step: the same one, as a rule
        try:
            file = self._memory.begin(self._kept)
        except NoRoom as error:
            self._end_memory(error)
            return
        assert file.layout is not None
        copy = HostCopy(state, file.layout, file.payload)

        def finish() -> None:
            copy.finish()
            file.seal(step, notes | {_ON_DISK: self._on_disk})

        self._copied.append(self._copies.submit(finish))

    def _end_memory(self, error: NoRoom) -> None:
        self._say(f"no state is kept in memory from here on: {error}")
        if self._memory is not None:
            self._memory.forget_after(0)
            self._memory = None

    def _save(
        self,
        step: int,
        sharded: Sharded,
        optimizer: Any,
        notes: dict[str, Any],
        *,
        last: bool = False,
    ) -> None:
        """To disk."""
        self._await_written()  # at most one is under way, on every rank alike
        state = sharded.state(optimizer)
        layout = Layout.of(state)
        device = any(host.in_device_memory(host.local(each)) for each in state.values())
        memory = host.host_memory(layout.bytes, pinned=device)
        copied = self._copies.submit(HostCopy(state, layout, memory).finish)
        self._copied.append(copied)

        held = self._memory

        def write() -> None:
            copied.result()
            there = layout.sharded(state, memory, self._mesh)
            try:
                marker = {"step": step, "notes": notes, "signature": self._signature}
                disk.write(self._folder, marker, there, self._group, self._text, self._say)
            except NotWritten as error:
                self._refused = str(error)
                if not last:
                    self._say(f"{error}. The run goes on; older checkpoints are as they were")
                return
            self._on_disk = step
            if held is not None and held.outlives and _first_here():
                held.own()  # what outlived its job is on disk now
            if self._rank == 0:
                disk.prune(self._folder, self.config.keep, self._damaged)

        self._written = self._writes.submit(write)

    def settle(self) -> None:
        """Waits until the state that is being copied is whole on this rank; before the collective
        that comes before the optimizer's step, so that no rank is a state ahead."""
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

    def finish(self, step: int, sharded: Sharded, optimizer: Any, notes: dict[str, Any]) -> None:
        """The run is over: its last state goes to disk, and nothing stays in memory. NotWritten
        where the disk does not take it; then memory keeps it, for the same command to write."""
        if not self.config.folder:
            return
        self.settle()
        self._await_written()
        if self._on_disk != step:
            self._save_last(step, sharded, optimizer, notes)
        self._gathered(None)  # no rank needs the memory any more
        if self._memory is not None:
            self._memory.remove()
        self.close()

    def _save_last(self, *state: Any) -> None:
        """`state`: as finish() has it."""
        if self._saved_last(*state):
            return
        if self._memory is not None and state[0] not in self._memory.steps():
            self._keep(*state)
            self.settle()
        if all(self._gathered(self._memory is not None)):
            assert self._memory is not None
            self._memory.outlive()
            raise NotWritten(
                f"{self._refused}. The state is kept in {self._memory.folder}: make room, and run "
                "the same command again, which writes it"
            )
        for pause in _PAUSES_S:
            self._say(f"{self._refused}. Make room: it is tried again in {pause:g} s")
            time.sleep(pause)
            if self._saved_last(*state):
                return
        raise NotWritten(f"{self._refused}. Older checkpoints are as they were")

    def _saved_last(self, *state: Any) -> bool:
        self._save(*state, last=True)
        self.settle()
        self._await_written()
        return bool(self._on_disk == state[0])

    def close(self) -> None:
        """Ends the threads once they are idle, and gives the folder back."""
        self._copies.shutdown(wait=False)
        self._writes.shutdown(wait=False)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _gathered(self, value: Any) -> list[Any]:
        everyone: list[Any] = [None] * self._ranks
        dist.all_gather_object(everyone, value, self._group)
        return everyone


def _first_here() -> bool:
    """Whether this rank speaks for those of its machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _locked(path: Path) -> int:
    end = time.monotonic() + _LOCK_S
    while (held := files.lock(path)) is None:
        if time.monotonic() > end:
            raise FolderInUse(
                f"{path.parent}: another job keeps its checkpoints here; end it, or set another "
                "checkpoint.folder"
            )
        time.sleep(0.05)
    return held


def _run_of(folder: Path, anew: bool) -> str:
    """The run's name. A copy of the folder is another run: it must not share what is in memory."""
    path, here = folder / "run", str(folder.resolve())
    found = path.read_text(errors="replace").split(maxsplit=1) if path.exists() else []
    if anew or len(found) != 2 or found[1].strip() != here:
        found = [uuid.uuid4().hex[:16], here]
        files.write_whole(path, " ".join(found), mode=0o666)
    return found[0]
