"""The trainer under `glake dry-run`, by the unmodified CUDA build, in memory and numbers mode."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FINETUNE = Path(__file__).resolve().parents[3] / "benchmarks" / "trainer" / "finetune.py"
TINY = {
    "model.layers": 2,
    "model.dim": 48,
    "model.position.longest": 64,
    "data.length": 64,
    "checkpoint.every": 0,
    "checkpoint.memory": "false",
    "log.progress": "false",
}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text("".join(f"line {n} of a text to train on\n" for n in range(300)))
    return path


@pytest.fixture
def dry_run(real_python):
    """Runs `glake dry-run --json`, and returns the rows of its table."""

    def run(*command):
        done = subprocess.run(
            [real_python, "-m", "glake.cli", "dry-run", "--json", "--outside", "0"]
            + [*map(str, command)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    return run


def trainer(text, folder):
    """The trainer's command line."""
    options = [f"--set={name}={value}" for name, value in TINY.items()]
    run = [f"--data={text}", "--steps=4", f"--folder={folder}"]
    return ["-m", "glake.trainer", "--config=gpt-tiny", *run, *options]


def losses(folder):
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [each["loss"] for each in log if each["event"] == "step"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_by_numbers_are_those_of_the_cpu(dry_run, text, tmp_path, ranks):
    launch = ["torchrun", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    options = ["--numbers", "--memory", "2GiB", "--allocator", "native", "--gpus", ranks]
    rows = dry_run(*options, *launch, *trainer(text, tmp_path / "gpu"))
    assert [row["steps"] for row in rows] == [4] and not list((tmp_path / "gpu").glob("step-*"))
    by_torchrun = [sys.executable, "-m", "torch.distributed.run", *launch[1:]]
    alone = [sys.executable] if ranks == 1 else by_torchrun
    subprocess.run(
        [*alone, *trainer(text, tmp_path / "cpu")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=400,
    )
    mine, theirs = losses(tmp_path / "gpu"), losses(tmp_path / "cpu")
    assert mine == pytest.approx(theirs, rel=1e-6) and mine[0] > mine[-1] > 0


def test_memory_of_two_ranks(dry_run, text, tmp_path):
    launch = ["torchrun", "--standalone", "--nproc-per-node=2"]
    (row,) = dry_run(
        "--gpus", "2xA100", "--allocator", "glake", *launch, *trainer(text, tmp_path / "run")
    )
    assert row["ranks"] == 2 and row["steps"] == 4 and row["oom"] is None
    assert 0 < row["peak_allocated_bytes"] <= row["peak_reserved_bytes"]


def test_a_real_runs_folder_is_left_alone_and_every_allocator_does_all_steps(
    dry_run, text, tmp_path
):
    command = trainer(text, tmp_path / "run")
    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=400)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    later = [each.replace("--steps=4", "--steps=6") for each in command]
    rows = dry_run("--allocator", "native,glake", *later, f"--export={tmp_path / 'out'}")
    assert [row["steps"] for row in rows] == [6, 6]
    after = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert after == before and not (tmp_path / "out").exists()


def test_what_is_offloaded_leaves_the_device_under_every_allocator(dry_run):
    """Once the engine's handles kept every activation on the device."""
    rows = dry_run(
        *("--memory", "24GiB", "--allocator", "native,glake"),
        *(FINETUNE, 8, "--steps", 2, "--size", "llama-3.2-1b"),
    )
    native, mine = (row["peak_allocated_bytes"] for row in rows)
    assert mine <= 1.01 * native


def test_a_rank_whose_last_backward_pass_failed_ends_in_order(dry_run):
    """It once died by a signal: queued work was computed after torch's kernels were gone."""
    program = Path(__file__).parent / "programs" / "failed_backward.py"
    options = ["--numbers", "--memory", "2GiB", "--allocator", "native", "--gpus", 2]
    (row,) = dry_run(*options, "torchrun", "--standalone", "--nproc-per-node=2", program)
    assert row["ranks"] == 2 and row["exit_code"] == 0
