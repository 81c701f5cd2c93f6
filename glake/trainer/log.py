"""The output of a run: a progress bar, lines of JSON, TensorBoard, a profile and a memory
snapshot."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.profiler import profile, schedule

import glake
from glake import extras
from glake.allocator import torch as allocator
from glake.errors import FileFailed, InvalidOption
from glake.trainer.configurable import Configurable, Count, Natural, NonNegative

_LINE_S = 10.0  # from one line to the next, if there is no terminal for a bar


class Log(Configurable):
    """The log of a run. Rank 0 writes it. The other ranks profile and take snapshots."""

    class Config(Configurable.Config):
        folder: str = ""  # of log.jsonl and the other files; "": that of checkpoints, if any
        every: Count = 1  # steps from one record to the next
        progress: bool = True
        tensorboard: bool = False
        peak_flops: NonNegative = 0.0  # of a rank, per second, for the MFU; 0: the MFU is left out
        profile: Natural = 0  # steps that torch's profiler sees, from the third step on
        snapshot: bool = False  # write PyTorch's memory snapshot of the run's last step
        trace: bool = False  # record what glake's allocator does, for `glake replay`

    def __init__(
        self, config: Config, *, rank: int, steps: int, folder: str, device: Any = None
    ) -> None:
        """Opens the log. `folder` is that of the checkpoints. A snapshot is of the memory of
        `device`. Raises InvalidOption or PackageMissing."""
        super().__init__(config)
        chosen = config.folder or folder
        files = ("tensorboard", "profile", "snapshot", "trace")
        if not chosen and (asked := [each for each in files if getattr(config, each)]):
            raise InvalidOption(f"log.{asked[0]} needs a folder to write to: set log.folder")
        self.folder = Path(os.path.expanduser(chosen)) if chosen else None
        self.lost = False  # whether records were lost, because the disk was full
        self.records: list[dict[str, Any]] = []  # of this process, if there is no folder
        self._rank = rank
        self._file: Any = None
        self._board: Any = None
        self._profiler: Any = None
        self._snapshot: Callable[[Path], None] | None = None
        with contextlib.ExitStack() as ends:  # closes what is open if opening the next fails
            self._bar = _Bar(steps, ends) if rank == 0 and config.progress else None
            if self.folder is not None:
                self._open(self.folder, ends, device)
            self._ends = ends.pop_all()

    def _open(self, folder: Path, ends: contextlib.ExitStack, device: Any) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._rank == 0:
                self._file = _continued(folder / "log.jsonl")
                ends.callback(_closed, self._file)
        except OSError as error:
            raise InvalidOption(
                f"log.folder (else checkpoint.folder) = {str(folder)!r}: {error.strerror}; name a "
                "folder that can be written to"
            ) from None
        if self.config.tensorboard and self._rank == 0:
            module = "torch.utils.tensorboard"
            board = extras.needed(module, "log.tensorboard", "tensorboard", "trainer")
            place = folder / "tensorboard"
            try:
                self._board = board.SummaryWriter(str(place))
            except OSError as error:
                raise InvalidOption(
                    f"log.tensorboard writes to {place}: {error.strerror}; make room, remove what "
                    "stands there, or set another log.folder"
                ) from None
            ends.callback(self._end_board)
        if self.config.profile:
            when = schedule(wait=1, warmup=1, active=self.config.profile, repeat=1)
            self._profiler = profile(schedule=when, on_trace_ready=self._write_profile)
            self._profiler.start()
            ends.callback(self._profiler.stop)
        if self.config.trace:
            ends.callback(_ended, _traced(folder / f"memory-{self._rank}.trace"))
        if self.config.snapshot:
            self._snapshot = _recorded(device)

    def say(self, text: str) -> None:
        """Tells the user one sentence, from rank 0."""
        if self._rank == 0:
            print(f"trainer: {text}", file=sys.stderr, flush=True)

    def event(self, kind: str, **values: Any) -> None:
        """Writes a record. A kill loses at most the last record."""
        record = {"event": kind, **values, "time": time.time()}
        if self.folder is None and self._rank == 0:
            self.records.append(record)
        if self._file is not None:
            try:
                self._file.write(json.dumps(record) + "\n")
                self._file.flush()
            except OSError as error:
                if not self.lost:
                    self.say(
                        f"{self._file.name}: {error.strerror}. The run goes on without its log"
                    )
                self.lost = True

    def step(self, step: int, values: dict[str, Any]) -> None:
        """Writes the numbers of a step, by name."""
        self.event("step", step=step, **values)
        try:
            for name in ("loss", "rate", "norm", "tokens_per_s", "mfu", "evaluation"):
                if name in values and self._board is not None:
                    self._board.add_scalar(name, values[name], step)
        except OSError as error:  # of an earlier step, because a thread writes
            self._lose_board(error)
        if self._bar is not None:
            self._bar.show(step, values)

    def _lose_board(self, error: OSError) -> None:
        """Goes on without TensorBoard, whose files cannot be written."""
        assert self.folder is not None
        self.say(
            f"{self.folder / 'tensorboard'}: {error.strerror}. The run goes on without TensorBoard"
        )
        board, self._board = self._board, None
        with contextlib.suppress(OSError):  # it writes what is left
            board.close()

    def _end_board(self) -> None:
        if self._board is None:
            return
        try:
            self._board.close()
        except OSError as error:
            self._lose_board(error)

    def profiled(self) -> None:
        """Tells the profiler that a step has ended."""
        if self._profiler is not None:
            self._profiler.step()

    def _write_profile(self, profiler: Any) -> None:
        assert self.folder is not None
        path = self.folder / f"profile-{self._rank}.json"
        part = path.with_name(f"{path.name}.part")
        try:
            profiler.export_chrome_trace(str(part))
            _require_json(part)  # the exporter returns after a failed write too
            part.replace(path)
        except OSError as error:
            _tell_of_loss(f"{path}: {error.strerror}. There is no profile of this run")
        else:
            self.say(f"profile: {path} (perfetto.dev opens it)")
        finally:
            for left in self.folder.glob(f"{part.name}*"):
                left.unlink(missing_ok=True)

    def snapshot(self) -> None:
        """Writes the memory snapshot, if one was requested."""
        if self._snapshot is not None and self.folder is not None:
            path = self.folder / f"memory-{self._rank}.pickle"
            part = path.with_name(f"{path.name}.part")
            try:
                self._snapshot(part)
                part.replace(path)
            except OSError as error:
                part.unlink(missing_ok=True)
                _tell_of_loss(f"{path}: {error.strerror}. There is no snapshot of this run")
            else:
                self.say(f"memory snapshot: {path} (pytorch.org/memory_viz opens it)")

    def close(self) -> None:
        """Writes what is left. Also called after an error."""
        self._ends.close()
        self._file = self._board = None


def _ended(trace: Any) -> None:
    try:
        trace.stop()
    except FileFailed as error:  # as with the log, a full disk does not end the run
        _tell_of_loss(str(error))


def _tell_of_loss(text: str) -> None:
    """Says, on whichever rank, that a file of the log could not be written. The run goes on."""
    print(f"trainer: {text}", file=sys.stderr, flush=True)


def _require_json(path: Path) -> None:
    """Raises OSError if the file is not there, or does not end as an object of JSON does."""
    end = b""
    if path.exists():
        with path.open("rb") as file:
            file.seek(max(0, os.path.getsize(path) - 64))
            end = file.read().rstrip()
    if not end.endswith(b"}"):
        raise OSError(errno.EIO, "it could not be written whole; make room")


def _closed(file: Any) -> None:
    with contextlib.suppress(OSError):  # the first failure was reported
        file.close()


def _continued(path: Path) -> Any:
    """Opens the log to continue it, and ends a line that a kill tore."""
    file = path.open("a")
    if file.tell():
        with path.open("rb") as written:
            written.seek(-1, os.SEEK_END)
            file.write("" if written.read() == b"\n" else "\n")
    return file


class _Bar:
    """A live bar on a terminal, or an occasional line in a log."""

    def __init__(self, steps: int, ends: contextlib.ExitStack) -> None:
        self._console = Console(stderr=True)
        self._steps, self._said = steps, 0.0
        self._bar: Any = None
        if self._console.is_terminal:
            columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}")
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("", total=steps, text="")
            self._bar.start()
            ends.callback(self._bar.stop)

    def show(self, step: int, values: dict[str, Any]) -> None:
        """Shows the state after `step` steps."""
        text = f"loss {values['loss']:.4f}  {values['tokens_per_s']:,.0f} tokens/s"
        if "mfu" in values:
            text += f"  MFU {values['mfu']:.1%}"
        if values.get("reserved_bytes"):
            live, held = values["allocated_bytes"], values["reserved_bytes"]
            text += f"  {live / 2**20:,.0f} of {held / 2**20:,.0f} MiB"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text)
        elif step == self._steps or time.monotonic() - self._said >= _LINE_S:
            self._said = time.monotonic()
            self._console.print(f"step {step}/{self._steps}  {text}", highlight=False)


def memory(device: Any) -> dict[str, Any]:
    """The peak bytes of this rank so far. glake gives them if it is torch's allocator, else torch.
    The dict is empty if nothing counts them."""
    if (mode := allocator.mode()) is not None:
        whose, live, found = mode, "requested_bytes", glake.stats(device.index or 0)
    elif device.type == "cuda":
        whose, live, found = "torch", "allocated_bytes", torch.cuda.memory_stats(device)
    else:
        return {}
    return {
        "allocator": whose,
        "allocated_bytes": found.get(f"{live}.all.peak", 0),
        "reserved_bytes": found.get("reserved_bytes.all.peak", 0),
    }


def _traced(path: Path) -> Any:
    """Makes glake record this rank's allocations from now on. Raises InvalidOption if glake makes
    none of them."""
    if allocator.mode() is None:
        raise InvalidOption(
            "log.trace: glake records what it allocates, and serves no memory here: "
            "GLAKE_ALLOCATOR=1 (without a GPU GLAKE_DRIVER=sim as well)"
        )
    return glake.record_trace(path)


def _recorded(device: Any) -> Callable[[Path], None]:
    """Makes torch's allocator record its memory from now on. Returns a function that writes
    PyTorch's memory snapshot. Raises InvalidOption if the allocator cannot record."""
    if allocator.mode() is not None:
        glake.record_memory_history()
        return glake.dump_snapshot
    if device.type == "cuda":
        torch.cuda.memory._record_memory_history()
        return lambda path: torch.cuda.memory._dump_snapshot(str(path))
    raise InvalidOption(
        "log.snapshot: on the CPU only glake's emulation knows what is allocated: "
        "GLAKE_ALLOCATOR=1 GLAKE_DRIVER=sim"
    )
