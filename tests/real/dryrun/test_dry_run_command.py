"""`glake dry-run` on unmodified scripts, by PyTorch's CUDA build on simulated GPUs."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
MIB = 1 << 20


@pytest.fixture
def dry_run(real_python, tmp_path):
    """Runs the command in another folder; its exit code, stdout and stderr."""

    def run(*arguments):
        done = subprocess.run(
            [real_python, "-m", "glake.cli", "dry-run", *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def found(result):
    code, stdout, stderr = result
    assert code == 0, stderr
    return {row["allocator"]: row for row in json.loads(stdout)}


def test_three_allocators_and_their_figures(dry_run):
    rows = found(dry_run("--json", PROGRAMS / "train.py", 3))
    assert list(rows) == ["native", "expandable", "glake"]
    weights = 8 * (2048 * 2048 + 2048) * 4
    for row in rows.values():
        assert row["oom"] is None and row["steps"] == 3 and row["ranks"] == 1
        # Weights, gradients and two moments are live at once, and activations besides.
        assert 4 * weights < row["peak_allocated_bytes"] < 6 * weights
        assert row["peak_allocated_bytes"] <= row["peak_reserved_bytes"]
        assert row["outside_bytes"] == 616 * MIB
        assert row["driver_calls"] > 10 and row["driver_us"] > 0
        assert row["host_rss_bytes"] < 1 << 30
    calls = {name: row["driver_calls"] for name, row in rows.items()}
    assert calls["native"] < calls["expandable"]  # cudaMalloc is one call, not three


def test_a_script_that_chooses_segments_itself_runs_under_each_allocator(dry_run):
    rows = found(dry_run("--json", PROGRAMS / "own_segments.py", "expandable_segments:True"))
    _, _, said = dry_run(
        "--json", "--allocator", "native,expandable", PROGRAMS / "own_segments.py",
        "max_split_size_mb:64, expandable_segments:True",
    )  # fmt: skip
    assert "expandable False, split 67108864" in said and "expandable True, split 67108864" in said
    plain = found(dry_run("--json", PROGRAMS / "own_segments.py", "max_split_size_mb:64"))
    for name in ("native", "expandable"):
        assert rows[name]["driver_calls"] == plain[name]["driver_calls"]
        assert rows[name]["peak_reserved_bytes"] == plain[name]["peak_reserved_bytes"]
    code, _, said = dry_run(
        "--allocator", "native", PROGRAMS / "own_segments.py", "backend:cudaMallocAsync"
    )
    assert code == 1 and "has backend:cudaMallocAsync: glake dry-run knows the" in said


def test_the_scripts_words_go_to_stderr_with_json(dry_run):
    code, stdout, stderr = dry_run("--json", "--allocator", "native", PROGRAMS / "train.py", 2)
    assert code == 0 and "step 1 loss 0.0" in stderr and "step" not in json.loads(stdout)[0]
    code, stdout, _ = dry_run("--allocator", "native", PROGRAMS / "train.py", 2)
    assert code == 0 and "step 1 loss 0.0" in stdout and "peak reserved" in stdout


def test_out_of_memory_is_a_result_that_says_who_holds_what(dry_run, tmp_path):
    memory = ["--memory", "1500MiB", "--html", tmp_path / "report.html"]
    rows = found(dry_run("--json", *memory, PROGRAMS / "train.py", 3, 60000))
    for row in rows.values():
        oom = row["oom"]
        assert oom["step"] == 2 and oom["requested_bytes"] >= 400 * MIB
        assert "out of memory" in oom["message"]
        holders = {holder["where"]: holder["bytes"] for holder in oom["holders"]}
        assert any("train.py" in where for where in holders)
        assert sum(holders.values()) <= row["peak_allocated_bytes"]
    assert "ran out of memory" in (tmp_path / "report.html").read_text()


def test_memory_outside_the_allocator_is_deducted(dry_run):
    """The job needs about 700 MiB. It fits into 1000 MiB only without CUDA's own share."""
    job = ["--json", "--allocator", "native", "--memory", "1000MiB"]
    assert found(dry_run(*job, PROGRAMS / "train.py", 2))["native"]["oom"] is not None
    row = found(dry_run(*job, "--outside", 0, PROGRAMS / "train.py", 2))["native"]
    assert row["oom"] is None and row["outside_bytes"] == 0


def test_the_smallest_gpu_runs_the_job_and_a_smaller_one_does_not(dry_run):
    job = ["--json", "--allocator", "glake", "--outside", 0]
    row = found(dry_run(*job, "--capacity-search", PROGRAMS / "train.py", 2))["glake"]
    least = row["smallest_capacity_bytes"]
    # cuBLAS holds 32 MiB for the handle of each of two threads. No allocator counts these.
    assert row["peak_allocated_bytes"] <= least <= row["peak_reserved_bytes"] * 1.02 + 64 * MIB
    again = found(dry_run(*job, "--memory", least, PROGRAMS / "train.py", 2))["glake"]
    assert again["oom"] is None
    less = int(least * 0.97)
    assert found(dry_run(*job, "--memory", less, PROGRAMS / "train.py", 2))["glake"]["oom"]


def test_a_refusal_that_the_script_lives_on_from(dry_run):
    job = ["--json", "--allocator", "native", "--memory", "64MiB", "--outside", 0]
    row = found(dry_run(*job, PROGRAMS / "lives_on.py"))["native"]
    assert row["oom"] is None and row["refusals"] >= 1
    assert row["peak_allocated_bytes"] == 64 * MIB  # the second try takes all


def test_a_library_that_finds_no_memory_is_a_result_too(dry_run):
    """cuBLAS takes a workspace from the driver, so PyTorch's allocator sees no refusal."""
    script = PROGRAMS / "library_finds_no_memory.py"
    job = ["--allocator", "native", "--memory", "64MiB", "--outside", 0]
    row = found(dry_run("--json", *job, script))["native"]
    assert "CUBLAS_STATUS_ALLOC_FAILED" in row["oom"]["message"] and row["refusals"] == 2
    assert row["oom"]["requested_bytes"] == 0  # not those of the request before
    assert {"bytes": 48 * MIB, "blocks": 1} in [
        {"bytes": each["bytes"], "blocks": each["blocks"]} for each in row["oom"]["holders"]
    ]
    code, stdout, stderr = dry_run(*job, "--capacity-search", script)
    assert code == 0, stderr
    said = " ".join(stdout.split())
    assert "out of memory" in said and "smallest GPU" in said
    assert "was refused memory on cuda:0 after 0 steps" in said and "cublasCreate" in said


@pytest.mark.parametrize("way", ["return", "exit_now", "killed"])
def test_forked_ranks_report_however_they_end(dry_run, way):
    job = ["--json", "--allocator", "native"]
    row = found(dry_run(*job, PROGRAMS / "forked_ranks.py", way))["native"]
    layer = (2048 * 2048 + 2048) * 4
    assert row["ranks"] == 2 and row["steps"] == 3 and row["driver_calls"] > 0
    assert layer + 32 * MIB <= row["peak_allocated_bytes"] < 5 * layer + 32 * MIB


def test_a_library_that_finds_no_memory_in_a_spawned_rank(dry_run):
    """torch.multiprocessing.spawn catches what its ranks raise."""
    job = ["--json", "--allocator", "native", "--memory", "64MiB", "--outside", 0]
    row = found(dry_run(*job, PROGRAMS / "spawned_ranks.py"))["native"]
    assert "CUBLAS_STATUS_ALLOC_FAILED" in row["oom"]["message"]
    assert row["oom"]["holders"][0]["bytes"] == 48 * MIB


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_job_and_leaves_nothing(real_python, tmp_path, number):
    command = [real_python, "-m", "glake.cli", "dry-run", "--allocator", "native"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    script = str(PROGRAMS / "sleeps.py")
    with subprocess.Popen(
        [*command, script], stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        job = int(run.stdout.readline())
        run.send_signal(number)
        assert run.wait(60) == 128 + number
    stat = Path(f"/proc/{job}/stat")
    # A process that has ended may wait for its new parent, which is the system's first process.
    state = stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"
    assert state in ("gone", "Z")
    assert not list(tmp_path.glob("glake-dry-run-*"))


def test_snapshots_are_kept_and_become_traces(dry_run, real_python, tmp_path):
    job = ["--json", "--allocator", "native,glake", "--out", tmp_path / "out"]
    rows = found(dry_run(*job, PROGRAMS / "train.py", 2))
    for row in rows.values():
        (snapshot,) = row["files"]
        trace = tmp_path / f"{row['allocator']}.trace.gz"
        convert = [real_python, "-m", "glake.cli", "trace", "convert", snapshot, "-o", trace]
        done = subprocess.run(convert, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and trace.stat().st_size > 500, done.stderr


def test_a_script_that_fails_of_itself(dry_run):
    code, _, stderr = dry_run("--allocator", "native", PROGRAMS / "fails.py")
    assert code == 1 and "ValueError: of its own" in stderr
    assert "not for lack of memory" in stderr and "exit code 1" in stderr


def test_a_script_that_uses_no_gpu(dry_run):
    code, _, stderr = dry_run("--allocator", "native", PROGRAMS / "no_gpu.py")
    assert code == 1 and "no process of the job used a GPU" in stderr


def test_small_values_from_the_host_are_followed(dry_run):
    for allocator in ("native", "glake"):
        code, stdout, stderr = dry_run("--allocator", allocator, PROGRAMS / "known.py")
        assert code == 0 and "followed" in stdout, stdout + stderr


def test_what_scripts_decide_by(dry_run):
    code, stdout, stderr = dry_run("--allocator", "native", PROGRAMS / "flows.py")
    assert code == 0 and "decided" in stdout, stdout + stderr


def test_a_job_that_never_waits_takes_no_more_memory_of_this_machine(dry_run):
    code, stdout, stderr = dry_run("--allocator", "native", PROGRAMS / "never_waits.py")
    assert code == 0 and "bounded" in stdout, stdout + stderr


def test_ranks_tell_each_other_values_objects_and_checkpoints(dry_run, tmp_path):
    script = [
        "torchrun",
        "--standalone",
        "--nproc-per-node",
        2,
        PROGRAMS / "known_ranks.py",
        tmp_path / "saved",
    ]
    code, stdout, stderr = dry_run("--gpus", 2, "--allocator", "native", *script)
    assert code == 0 and stdout.count("told") == 2, stdout + stderr


def test_without_a_compiler_the_run_says_what_is_not_followed(dry_run, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("GLAKE_JIT_DIR", str(tmp_path / "empty"))
    code, _, stderr = dry_run("--allocator", "native", PROGRAMS / "train.py", 2)
    assert code == 0 and "will return as zero" in stderr and "no-such-compiler" in stderr
