"""Ranks killed by SIGKILL under torchrun, and checkpoints read by another number of ranks.

benchmarks/trainer/kills.py makes a hundred kills.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "trainer"))
import kills  # noqa: E402

pytestmark = pytest.mark.proof
TINY = ["model.layers=2", "model.dim=64", "data.length=32", "sequences=12"]


def test_five_kills_change_no_loss(tmp_path: Path) -> None:
    changes = ["model.layers=2", "data.length=64", "sequences=12", "checkpoint.every=5"]
    found = kills.trial(tmp_path, 40, kills=5, every=0, ranks=2, seed=1, changes=changes)
    assert found["kills"] == 5 and found["restarts"] >= 1
    assert found["steps_without_record"] == [] and found["steps_that_differ"] == []
    assert found["from_memory"] >= found["restarts"] - 1  # one may come before the first step's end
    lock = (tmp_path / "killed" / ".lock").stat()
    assert not list(Path("/dev/shm").glob(f"glake-trainer-*-{lock.st_ino:x}-{lock.st_mtime_ns:x}"))
    said = (tmp_path / "killed" / "output.txt").read_text()
    assert "goes on after step" in said and "goodput" in said


def test_ranks_end_after_torchrun_was_killed_and_the_command_goes_on(tmp_path: Path) -> None:
    text = kills.some_text(tmp_path / "text")
    with kills.job(tmp_path / "run", text, 1 << 20, 2, TINY) as running:
        assert running.reach(3)
        ranks = running.ranks()
        running.process.kill()
        running.process.wait()
        end = time.monotonic() + 60
        while any(kills._command(rank) for rank in ranks) and time.monotonic() < end:
            time.sleep(0.05)
    assert len(ranks) == 2 and not any(kills._command(rank) for rank in ranks)
    assert "RankLost: torchrun was killed" in (tmp_path / "run" / "output.txt").read_text()
    steps = running.steps()
    with kills.job(tmp_path / "run", text, steps + 2, 2, TINY) as again:
        assert max(kills.finished(again)) == steps + 2
    assert "from memory" in (tmp_path / "run" / "output.txt").read_text()


def test_ranks_train_twice_in_one_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    text = kills.some_text(tmp_path / "text")
    program = Path(__file__).with_name("program_twice.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--nproc-per-node=2", str(program), str(text), *TINY],
        env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [4, 3])
def test_a_checkpoint_of_two_ranks_is_read_by_four_and_by_three(
    tmp_path: Path, two_ranks: Path, ranks: int
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(two_ranks, folder)
    shutil.rmtree(folder / "step-00000006")
    expected = kills.last_of_each_step(kills.records(folder / "log.jsonl"))
    (folder / "log.jsonl").unlink()
    text = two_ranks.parent / "text"
    with kills.job(folder, text, 6, ranks, [*TINY, "checkpoint.every=3"]) as running:
        found = kills.finished(running)
    assert sorted(found) == [4, 5, 6]  # from the checkpoint of step 3
    for step in found:
        assert found[step]["loss"] == pytest.approx(expected[step]["loss"], rel=1e-5)
        assert found[step]["norm"] == pytest.approx(expected[step]["norm"], rel=1e-4)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, with checkpoints of steps 3 and 6."""
    scratch = tmp_path_factory.mktemp("two")
    text = kills.some_text(scratch / "text")
    with kills.job(scratch / "run", text, 6, 2, [*TINY, "checkpoint.every=3"]) as running:
        assert len(kills.finished(running)) == 6
    return scratch / "run"
