"""Ranks killed by SIGKILL under torchrun, and checkpoints read by another number of ranks.

A hundred kills: benchmarks/trainer/kills.py.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "trainer"))
import kills  # noqa: E402

TINY = ["model.layers=2", "model.dim=64", "data.length=32", "sequences=12"]


def test_five_kills_change_no_loss(tmp_path: Path) -> None:
    changes = ["model.layers=2", "data.length=64", "sequences=12", "checkpoint.every=5"]
    found = kills.trial(tmp_path, 40, kills=5, every=0, ranks=2, seed=1, changes=changes)
    assert found["kills"] == 5 and found["restarts"] >= 1
    assert found["steps_that_differ"] == []
    assert found["from_memory"] >= found["restarts"] - 1  # one may hit before the first step ends
    assert not list(Path("/dev/shm").glob(f"glake-trainer-*-{_run(tmp_path / 'killed')}"))
    said = (tmp_path / "killed" / "output.txt").read_text()
    assert "goes on after step" in said and "goodput" in said


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


def _run(folder: Path) -> str:
    return (folder / "run").read_text()
