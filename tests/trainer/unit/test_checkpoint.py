"""Checkpoints are whole or absent, and are found again. Damaged ones are noticed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stand_in import NoOptimizer, StandIn

from glake.errors import CheckpointMismatch, FolderInUse, GlakeError, NotWritten, NoWholeCheckpoint
from glake.trainer.checkpoint import Checkpoint, disk, memory

SIZE = 1003


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev/shm."""
    root = tmp_path / "shm"
    root.mkdir()
    monkeypatch.setattr(memory, "ROOT", root)
    return root


class Run:
    """A run of the stand-in: its checkpoints, and what the user was told."""

    def __init__(self, folder: Path, size: int = SIZE, heads: str = "2", **fields: Any) -> None:
        self.said: list[str] = []
        config = Checkpoint.Config(folder=str(folder), **fields)
        self.checkpoint: Checkpoint = config.build(
            group=dist.group.WORLD,
            say=self.said.append,
            text="seed = 1\n",
            signature={"model.heads": heads},
        )
        self.model = StandIn(size)
        try:
            self.resumed = self.checkpoint.resume(self.model.state, NoOptimizer())
        except BaseException:
            self.checkpoint.close()
            raise

    def steps(self, first: int, last: int) -> Run:
        for step in range(first, last + 1):
            self.checkpoint.settle()
            self.model.step(step)
            self.checkpoint.after_step(step, {"step": step, "tokens": step * 10})
        return self

    def killed(self) -> None:
        """Leaves the run as a SIGKILL does, but waits for what is being written."""
        self.checkpoint.settle()
        self.checkpoint._await_written()
        self.checkpoint.close()

    @property
    def at(self) -> tuple[str, int] | None:
        if self.resumed is None:
            return None
        assert self.model.is_of(self.resumed.step)
        assert self.resumed.notes == {"step": self.resumed.step, "tokens": self.resumed.step * 10}
        return self.resumed.source, self.resumed.step


def markers(folder: Path) -> list[str]:
    return sorted(each.parent.name for each in folder.glob("step-*/" + disk.MARKER))


def test_a_killed_run_goes_on_from_memory_and_without_it_from_disk(
    tmp_path: Path, shared: Path
) -> None:
    run = Run(tmp_path / "run", every=4)
    assert run.resumed is None
    run.steps(1, 11).killed()
    again = Run(tmp_path / "run", every=4)
    assert again.at == ("memory", 11)
    again.killed()
    for each in shared.glob("*/*.[01]"):
        each.unlink()
    without = Run(tmp_path / "run", every=4)
    assert without.at == ("disk", 8)
    without.killed()


def test_an_interrupted_run_writes_the_last_state_that_it_has(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", every=2).steps(1, 3)
    assert run.checkpoint.interrupted() == (
        f"the same command goes on after step 3, from {tmp_path / 'run' / 'step-00000003'}"
    )
    run.checkpoint.close()
    assert markers(tmp_path / "run") == ["step-00000002", "step-00000003"]
    again = Run(tmp_path / "run", memory=False)
    assert again.at == ("disk", 3)
    assert "after step 3" in again.checkpoint.interrupted()
    again.killed()


def test_an_interrupted_run_tells_what_there_is(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", memory=False).steps(1, 3)
    assert "no checkpoint yet" in run.checkpoint.interrupted()
    run.killed()
    run = Run(tmp_path / "other").steps(1, 3)
    run.checkpoint.settle()
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "other").write_text("no folder")
    assert "after step 3, from memory until the machine ends" in run.checkpoint.interrupted()
    run.killed()


def test_it_keeps_the_last_ones_and_a_finished_run_leaves_no_memory(
    tmp_path: Path, shared: Path
) -> None:
    run = Run(tmp_path / "run", every=3, keep=2).steps(1, 10)
    run.checkpoint.finish(10, {"step": 10, "tokens": 100})
    assert markers(tmp_path / "run") == ["step-00000009", "step-00000010"]
    assert list(shared.iterdir()) == []
    again = Run(tmp_path / "run")
    assert again.at == ("disk", 10)
    again.killed()


def test_memory_is_private_and_a_torn_state_is_not_used(tmp_path: Path, shared: Path) -> None:
    run = Run(tmp_path / "run", every=0).steps(1, 6)
    run.killed()
    (folder,) = shared.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in folder.glob("0of1.*")} == {0o600}
    files = run.checkpoint._memory.whole()
    assert sorted(files) == [5, 6]
    files[6].clear()  # as if killed during the write
    again = Run(tmp_path / "run", every=0)
    assert again.at == ("memory", 5)
    again.steps(6, 6).killed()
    files[6].memory[100] ^= 1  # as if somebody wrote into it
    torn = Run(tmp_path / "run", every=0)
    assert torn.at == ("memory", 5)
    assert "step 6 in memory is damaged" in torn.said[0]
    torn.killed()


def test_states_of_a_later_step_are_forgotten_where_a_run_goes_back(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", every=2).steps(1, 5)
    run.killed()
    own = run.checkpoint._memory
    own.forget_after(4)
    assert list(own.whole()) == [4]
    own.forget_after(0)
    assert list(own.whole()) == []
    chosen = own.begin(own.files[0].layout)
    assert chosen.header is None


@pytest.mark.parametrize(
    "damage",
    ["flipped", "short", "gone", "marker", "empty", "folder", "pipe", "signature", "unmarked"],
)
def test_a_damaged_checkpoint_is_skipped_for_the_newest_whole_one(
    tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "run"
    Run(folder, every=2, keep=3, memory=False).steps(1, 6).killed()
    newest = folder / "step-00000006"
    part = next(newest.glob("*.distcp"))
    if damage == "flipped":
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.write_bytes(data)
    elif damage == "short":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "gone":
        part.unlink()
    elif damage == "marker":
        (newest / disk.MARKER).write_text('{"step": ')
    elif damage == "empty":
        (newest / disk.MARKER).write_text("")
    elif damage in ("folder", "pipe"):
        (newest / disk.MARKER).unlink()
        (os.mkfifo if damage == "pipe" else os.mkdir)(newest / disk.MARKER)
    elif damage == "signature":
        told = json.loads((newest / disk.MARKER).read_text())
        (newest / disk.MARKER).write_text(json.dumps(told | {"signature": 5}))
    else:
        (newest / disk.MARKER).unlink()
    again = Run(folder, every=2, memory=False)
    assert again.at == ("disk", 4)
    assert len(again.said) == 1 and "step-00000006" in again.said[0]
    again.killed()


def test_damaged_checkpoints_do_not_count_among_those_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run(folder, every=2, keep=3, memory=False).steps(1, 6).killed()
    for step in (4, 6):
        next((folder / f"step-{step:08d}").glob("*.distcp")).write_bytes(b"")
    again = Run(folder, every=1, keep=2, memory=False)
    assert again.at == ("disk", 2)
    again.steps(3, 3).killed()
    damaged = [f"step-{step:08d}.damaged-1" for step in (4, 6)]  # none is deleted
    assert markers(folder) == ["step-00000002", "step-00000003", *damaged]
    last = Run(folder, every=2, memory=False)
    assert last.at == ("disk", 3)
    last.killed()


def test_folders_of_other_names_are_the_users(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run(folder, every=2, keep=1, memory=False).steps(1, 2).killed()
    shutil.copytree(folder / "step-00000002", folder / "step-backup")
    (folder / "step-notes").mkdir()
    (folder / "step-list.txt").write_text("mine")
    (folder / "step-00000009").write_text("a file")
    again = Run(folder, every=2, keep=1, memory=False)
    assert again.at == ("disk", 2) and again.said == []
    again.steps(3, 4).killed()
    assert markers(folder) == ["step-00000004", "step-backup"]
    assert (folder / "step-notes").is_dir() and (folder / "step-list.txt").exists()


def test_a_folder_with_something_of_the_users_is_neither_removed_nor_written_into(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    for step in (4, 6):
        (folder / f"step-{step:08d}").mkdir(parents=True)
        (folder / f"step-{step:08d}" / "notes.txt").write_text("mine")
    (folder / "step-00000008").write_text("a file")
    for name in ("step-00000003", "step-00000005", "step-00000007"):
        (folder / name).mkdir()
    (folder / "step-00000003" / "config.toml").write_text("mine")
    (folder / ".step-00000005.part").mkdir()
    (folder / ".step-00000005.part" / "__0_0.distcp").write_text("left by a kill")
    run = Run(folder, every=2, keep=1, memory=False)
    assert run.resumed is None and run.said == [".step-00000005.part was never finished: removed"]
    assert not (folder / ".step-00000005.part").exists()
    run.steps(1, 8).killed()
    assert markers(folder) == ["step-00000008"]
    assert (folder / "step-00000003" / "config.toml").exists()
    assert (folder / "step-00000007").is_dir()
    for step in (4, 6):
        aside = folder / f"step-{step:08d}.before-1"
        assert (aside / "notes.txt").read_text() == "mine"
    assert (folder / "step-00000008.before-1").read_text() == "a file"
    assert len(run.said) == 1


def test_a_damaged_checkpoint_is_not_overwritten_by_the_step_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run(folder, every=2, keep=3, memory=False).steps(1, 4).killed()
    next((folder / "step-00000004").glob("*.distcp")).write_bytes(b"")
    again = Run(folder, every=2, keep=3, memory=False)
    again.steps(3, 4).killed()
    assert markers(folder)[-2:] == ["step-00000004", "step-00000004.damaged-1"]


def test_without_memory_a_run_goes_back_to_the_disk_and_forgets_what_came_after(
    tmp_path: Path, shared: Path
) -> None:
    folder = tmp_path / "run"
    Run(folder, every=2, keep=3).steps(1, 5).killed()
    shutil.rmtree(folder / "step-00000004")
    back = Run(folder, every=2, keep=3, memory=False)
    assert back.at == ("disk", 2) and list(shared.iterdir()) == []
    back.steps(3, 4).killed()
    again = Run(folder, every=2, keep=3)
    assert again.at == ("disk", 4)
    again.killed()


def test_a_folder_that_is_removed_while_it_is_written_costs_that_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed import checkpoint

    def removed(*_: Any, **__: Any) -> None:
        shutil.rmtree(tmp_path / "run")
        raise FileNotFoundError(2, "No such file or directory")

    run = Run(tmp_path / "run", every=2, memory=False)
    with monkeypatch.context() as gone:
        gone.setattr(checkpoint, "save", removed)
        run.steps(1, 2)
        run.checkpoint._await_written()
    run.steps(3, 4).killed()
    assert markers(tmp_path / "run") == ["step-00000004"]
    assert "step 2 could not be written" in run.said[0] and len(run.said) == 1


def _unwritable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glake.trainer.checkpoint._PAUSES_S", (0.01, 0.02))
    monkeypatch.setattr(disk, "_committed", lambda *_: os.strerror(28))


def test_the_last_state_that_the_disk_refuses_stays_in_memory_until_it_is_written(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run", every=0, memory_every=2).steps(1, 5)
    notes = {"step": 5, "tokens": 50}
    with monkeypatch.context() as full:
        _unwritable(full)
        with pytest.raises(NotWritten, match="No space left.*run the same command again"):
            run.checkpoint.finish(5, notes)
    run.checkpoint.close()
    assert len(run.said) == 2 and "it is tried again in 0.01 s" in run.said[0]
    (kept,) = shared.iterdir()
    assert memory.sweep("another") == ([], {}) and kept.exists()  # even if its process is gone
    with pytest.raises(CheckpointMismatch):
        Run(tmp_path / "run", every=0, heads="4")
    assert memory.sweep("another") == ([], {}) and "kept" in (kept / "owner").read_text()
    again = Run(tmp_path / "run", every=0)
    assert again.at == ("memory", 5)
    again.checkpoint.finish(5, notes)
    assert markers(tmp_path / "run") == ["step-00000005"] and list(shared.iterdir()) == []


def test_without_memory_the_last_state_is_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glake.trainer.checkpoint._PAUSES_S", (0.01, 0.02))
    committed, refused = disk._committed, [True]

    def full_once(*arguments: Any) -> str | None:
        return "No space left on device" if refused and refused.pop() else committed(*arguments)

    run = Run(tmp_path / "run", every=0, memory=False).steps(1, 3)
    monkeypatch.setattr(disk, "_committed", full_once)
    run.checkpoint.finish(3, {"step": 3, "tokens": 30})
    assert markers(tmp_path / "run") == ["step-00000003"]
    assert len(run.said) == 1 and run.said[0].endswith("Make room: it is tried again in 0.01 s")
    never = Run(tmp_path / "never", every=0, memory=False).steps(1, 3)
    _unwritable(monkeypatch)
    with pytest.raises(NotWritten, match="step 3 could not be .*Older checkpoints are as"):
        never.checkpoint.finish(3, {"step": 3, "tokens": 30})
    never.checkpoint.close()
    assert len(never.said) == 2


def test_a_copy_of_the_folder_is_another_run(tmp_path: Path, shared: Path) -> None:
    Run(tmp_path / "run", every=2).steps(1, 3).killed()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copied = Run(tmp_path / "copy", every=2)
    assert copied.at == ("disk", 2)
    copied.steps(3, 9).killed()
    first = Run(tmp_path / "run", every=2)
    assert first.at == ("memory", 3)
    first.killed()


def _of_two_ranks(shared: Path) -> list[Path]:
    """Renames the states in memory, as if a job of two ranks had kept them. Returns the new
    paths."""
    return [
        path.rename(path.with_name(path.name.replace("of1", "of2")))
        for path in sorted(shared.glob("*/0of1.*"))
    ]


def test_a_newer_state_of_another_number_of_ranks_is_not_dropped_without_a_word(
    tmp_path: Path, shared: Path
) -> None:
    Run(tmp_path / "run", every=4).steps(1, 6).killed()
    _of_two_ranks(shared)
    again = Run(tmp_path / "run", every=4)
    assert again.at == ("disk", 4)
    (said,) = again.said
    assert said.startswith("the state of step 6 in memory is of 2 ranks, and this job has 1: not")
    again.steps(5, 7).killed()
    assert not list(shared.glob("*/*of2*"))
    newer = Run(tmp_path / "run", every=4)
    assert newer.at == ("memory", 7) and newer.said == []
    newer.killed()


def test_the_only_state_of_another_number_of_ranks_is_not_dropped(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run", every=0).steps(1, 5)
    with monkeypatch.context() as full:
        _unwritable(full)
        with pytest.raises(NotWritten):
            run.checkpoint.finish(5, {"step": 5, "tokens": 50})
    run.checkpoint.close()
    kept = _of_two_ranks(shared)
    with pytest.raises(CheckpointMismatch, match="step 5 .* 2 ranks, and this job has 1; .*room"):
        Run(tmp_path / "run", every=0)
    assert all(path.exists() for path in kept)
    Run(tmp_path / "run", every=0, memory=False).killed()  # the error names this way out
    assert not any(path.exists() for path in kept)


def test_memory_of_another_number_of_ranks_does_not_come_back(tmp_path: Path, shared: Path) -> None:
    run = Run(tmp_path / "run", every=0).steps(1, 3)
    run.killed()
    (folder,) = shared.iterdir()
    others = [folder / f"{rank}of2.{half}" for rank in (0, 1) for half in (0, 1)]
    for path in others:
        path.write_bytes(b"of two ranks")
    again = Run(tmp_path / "run", every=0)
    assert all(path.exists() for path in others)  # they stay until this job keeps a state
    again.steps(4, 4).killed()
    assert not any(path.exists() for path in others)


def test_where_no_checkpoint_is_whole_nothing_begins_anew_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run(folder, every=2, memory=False).steps(1, 4).killed()
    for part in folder.glob("*/*.distcp"):
        part.write_bytes(b"")
    with pytest.raises(NoWholeCheckpoint, match=r"none of its 2 .*another checkpoint.folder"):
        Run(folder, memory=False)
    assert len(markers(folder)) == 2  # none is deleted


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    Run(tmp_path / "run", every=2).steps(1, 2).killed()
    with pytest.raises(
        CheckpointMismatch, match="has 1016 elements in .* and 1024 in .*config.toml"
    ):
        Run(tmp_path / "run", size=SIZE + 8)
    assert (tmp_path / "run" / "step-00000002" / "config.toml").read_text() == "seed = 1\n"


@pytest.mark.parametrize("kept", [True, False])
def test_a_state_of_the_same_sizes_with_another_signature_is_refused(
    tmp_path: Path, kept: bool
) -> None:
    Run(tmp_path / "run", every=2, memory=kept).steps(1, 2).killed()
    where = "step 2 in memory" if kept else "step-00000002"
    text = (
        f"{where} is of another .*: model.heads is 2 there and 4 here. .*another checkpoint.folder"
    )
    with pytest.raises(CheckpointMismatch, match=text):
        Run(tmp_path / "run", heads="4", memory=kept)
    again = Run(tmp_path / "run", memory=kept)
    assert again.at == ("memory" if kept else "disk", 2) and again.said == []
    again.killed()


@pytest.mark.parametrize(
    "wrong", [{"files": []}, {"files": {"a": 3}}, {"files": {"a": [1]}}, {"notes": 3}, {"step": []}]
)
def test_a_marker_that_is_not_as_it_was_written_is_damage(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    Run(folder, every=2, keep=3, memory=False).steps(1, 4).killed()
    marker = folder / "step-00000004" / disk.MARKER
    marker.write_text(json.dumps(json.loads(marker.read_text()) | wrong))
    again = Run(folder, memory=False)
    assert again.at == ("disk", 2) and "step-00000004" in again.said[0]
    again.killed()


def test_a_second_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glake.trainer.checkpoint._LOCK_S", 0.2)
    run = Run(tmp_path / "run")
    said: list[str] = []
    config = Checkpoint.Config(folder=str(tmp_path / "run"))
    with pytest.raises(FolderInUse, match="another job keeps its checkpoints here"):
        config.build(group=dist.group.WORLD, say=said.append, text="", signature={})
    assert said == [f"{tmp_path / 'run'} is another job's: waits up to 0.2 s for it to end"]
    run.killed()
    Run(tmp_path / "run").killed()


def test_a_full_disk_costs_that_checkpoint_alone(tmp_path: Path) -> None:
    """A file-size limit refuses one write, as a full disk does. It runs in its own process."""
    program = Path(__file__).with_name("program_full_disk.py")
    done = subprocess.run(
        [sys.executable, program, tmp_path / "run"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (said,) = told["said"]
    assert said.startswith("the checkpoint of step 4 could not be written: the file system did not")
    assert said.endswith("The run goes on; older checkpoints are as they were")
    room = re.search(rf"\({tmp_path}/run: it takes (\d+) bytes .*, and (\d+) are free\)", said)
    assert room and 120_000 <= int(room[1]) < 120_100 < int(room[2])  # not full: the limit refused
    assert told["markers"] == ["step-00000002", "step-00000006"]
    assert told["partial"] == []


def test_no_room_in_shared_memory_leaves_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    run = Run(tmp_path / "run", every=2).steps(1, 5)
    run.killed()
    assert "no state is kept in memory" in run.said[0] and "--shm-size" in run.said[0]
    again = Run(tmp_path / "run", every=2)
    assert again.at == ("disk", 4)
    again.killed()


def test_shared_memory_that_fills_up_during_the_run_leaves_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    run = Run(tmp_path / "run", every=2).steps(1, 3)
    run.checkpoint.settle()
    with monkeypatch.context() as full:
        full.setattr(memory.files, "write_whole", refuse)
        run.steps(4, 4).checkpoint.settle()
    run.steps(5, 5).killed()
    (said,) = run.said
    assert "no state is kept in memory" in said and "No space left on device" in said
    again = Run(tmp_path / "run", every=2)
    assert again.at == ("disk", 4)
    again.killed()


@pytest.mark.parametrize("wrong", [{"step": "6"}, {"notes": 3}, {"entries": 5}, {"more": 1}])
def test_what_lies_beside_a_state_and_is_not_as_it_was_written_is_no_state(
    tmp_path: Path, shared: Path, wrong: dict[str, Any]
) -> None:
    Run(tmp_path / "run", every=0).steps(1, 6).killed()
    for beside in shared.glob("*/*of*.json"):
        told = json.loads(beside.read_text())
        if told["step"] == 6:
            beside.write_text(json.dumps(told | wrong))
    again = Run(tmp_path / "run", every=0)
    assert again.at == ("memory", 5)
    again.killed()


def test_left_over_segments_are_swept_but_not_those_of_the_living(shared: Path) -> None:
    def left(run: str, owner: str) -> Path:
        made = memory.Memory(run, shared / "no-folder", 0, 1)
        (made.folder / "owner").write_text(owner)
        return made.folder

    alive = memory._process(os.getpid())
    _, began, here = alive.split()
    dead = f"{2**22 + 1} {began} {here}"
    left("living", alive), left("own", dead), left("elsewhere", f"{2**22 + 1} {began} pid:[1]")
    left("unreadable", "x")
    gone = [left("dead", dead), left("reused", f"{os.getpid()} 1 {here}")]
    foreign = shared / f"glake-trainer-{os.getuid()}-open"
    foreign.mkdir(mode=0o777)
    foreign.chmod(0o777)
    (foreign / "owner").write_text(dead)
    assert memory.sweep("own") == (gone, {})
    assert len(list(shared.iterdir())) == 5
    with pytest.raises(GlakeError, match="no private folder"):
        memory.Memory("open", shared, 0, 1)


def test_the_only_state_of_a_killed_job_outlasts_other_jobs(tmp_path: Path, shared: Path) -> None:
    killed = Run(tmp_path / "killed", every=0).steps(1, 6)
    killed.killed()
    (left,) = shared.iterdir()
    _, began, here = memory._process(os.getpid()).split()
    dead = f"{2**22 + 1} {began} {here}"
    (left / "owner").write_text(dead)
    other = Run(tmp_path / "other", every=0).steps(1, 1)
    assert str(tmp_path / "killed") in other.said[0] and "kept" in other.said[0]
    other.checkpoint.finish(1, {})
    again = Run(tmp_path / "killed", every=8)
    assert again.at == ("memory", 6)
    again.steps(7, 9).killed()
    (left / "owner").write_text(dead)
    assert memory.sweep("another") == ([], {left: tmp_path / "killed"})  # newer than step 8 on disk


def test_a_state_in_memory_that_nothing_would_go_on_from_is_swept(
    tmp_path: Path, shared: Path
) -> None:
    _, began, here = memory._process(os.getpid()).split()
    for every in (6, 0):
        Run(tmp_path / "run", every=every).steps(1, 6).killed()
        (left,) = shared.iterdir()
        (left / "owner").write_text(f"{2**22 + 1} {began} {here}")
        if every == 0:  # no checkpoint is as new, but the folder is gone
            shutil.rmtree(tmp_path / "run")
        assert memory.sweep("another") == ([left], {})
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_the_checksum_sees_every_byte() -> None:
    from glake.trainer.checkpoint.host import checksum

    bytes_ = torch.arange(1, 105, dtype=torch.uint8)
    before = checksum(bytes_)
    for at in range(len(bytes_)):
        bytes_[at] ^= 0x80
        assert checksum(bytes_) != before
        bytes_[at] ^= 0x80
    assert checksum(bytes_) == before
