"""`glake plan` without a recording: targets, sizes, verdicts, table, JSON and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import glake.trace
from glake import outside
from glake.errors import BadTarget, PlanError
from glake.trace import child, planner, record
from glake.trace.job import Job
from glake.trace.plan_cli import plan

PROGRAMS = Path(__file__).parent / "programs"
TRACES = Path(__file__).resolve().parents[1] / "traces"
GIB = 1 << 30
FACTS = {
    "steps": 4,
    "rank": 0,
    "world": 1,
    "peak_live_bytes": 1 << 30,
    "setup_live_bytes": 1 << 20,
    "assumptions": "nonzero or a mask: half (2 times)",
}


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copy(PROGRAMS / "given_job.py", tmp_path)
    yield
    sys.modules.pop("given_job", None)


def test_a_target_is_found_in_the_current_directory_with_or_without_parameter(job):
    assert child.load_target("given_job:with_job")(Job(steps=7)) == 7
    assert child.load_target("given_job:without")(Job()) == "step"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere:make_step", "no module 'nowhere'"),
        ("given_job:nothing", "has no 'nothing'"),
        ("given_job:number", "int, not a function"),
        (":make_step", "give MODULE:FUNCTION"),
        ("given_job:", "give MODULE:FUNCTION"),
    ],
)
def test_wrong_targets_say_what_is_wrong(job, target, words):
    with pytest.raises(BadTarget, match=words):
        child.load_target(target)


@pytest.mark.parametrize(
    ("field", "value"),
    [("world", 0), ("rank", 1), ("rank", -1), ("steps", 0), ("attention", "x"), ("scratch", "x")],
)
def test_requests_out_of_range_are_refused_before_a_process_is_started(tmp_path, field, value):
    with pytest.raises(PlanError, match=f"{field} '?{value}"):
        record.record("a:b", tmp_path / "t.trace", **{field: value})


def test_a_child_that_dies_is_told_with_its_last_words(tmp_path):
    with pytest.raises(PlanError, match="(?s)ended by SIGABRT.*some last words"):
        record.record("a:b", tmp_path / "t.trace", python=str(PROGRAMS / "dying.sh"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "t.trace").write_text("an earlier trace")
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("t.trace", "device"):
        with pytest.raises(PlanError, match="(?s)ended by SIGABRT.*some last words"):
            record.record("a:b", tmp_path / name, python=str(PROGRAMS / "dying.sh"))
    assert (tmp_path / "t.trace").read_text() == "an earlier trace"
    assert sorted(os.listdir(tmp_path)) == ["device", "t.trace"]
    with pytest.raises(PlanError, match="cannot start /nonexistent"):
        record.record("a:b", tmp_path / "t.trace", python="/nonexistent")


def test_importing_the_package_brings_no_torch_and_no_child():
    assert glake.trace.Job is Job and glake.trace.plan is planner.plan
    with pytest.raises(AttributeError):
        _ = glake.trace.nothing


@pytest.mark.parametrize("text", ["", "0", "-1", "80GB", "1e9", "99999999TiB", "1KiB"])
def test_sizes_that_are_none(text):
    with pytest.raises(PlanError, match="gpu"):
        planner.parse_size("gpu", text)


def test_sizes():
    assert planner.parse_size("gpu", "80 GiB") == planner.parse_size("gpu", 80 * GIB) == 80 * GIB
    assert planner.parse_size("context", "0", 0) == 0
    assert outside.estimate(8) - outside.estimate(1) == GIB


@pytest.fixture
def replayed(monkeypatch):
    """Plans by a trace that was recorded before, without a child."""

    def fake(target, out, **asked):
        recorded = (TRACES / "gpt-varying.trace.gz").read_bytes()
        if hasattr(out, "fileno"):  # the child opens it by its descriptor
            out = f"/dev/fd/{out.fileno()}"
        Path(out).write_bytes(recorded)
        return dict(FACTS)

    monkeypatch.setattr(planner, "record", fake)


def test_the_verdict_says_who_fits(replayed):
    found = glake.trace.plan("job:make_step", gpu="8GiB", policies=("glake", "native"))
    Path(found.trace).unlink()
    least = {each.policy: each.min_capacity_bytes for each in found.results}
    assert found.fits == {"glake": True, "native": True}
    assert found.verdict == "job:make_step fits in 8GiB with glake and PyTorch's default allocator"
    between = (least["glake"] + least["native"]) // 2 + found.context_bytes
    tight = glake.trace.plan("job:make_step", gpu=between, policies=("glake", "native"))
    Path(tight.trace).unlink()
    assert tight.fits == {"glake": True, "native": False}
    assert tight.verdict.endswith("with glake; not with PyTorch's default allocator")
    assert tight.capacity_bytes == between - outside.CONTEXT_BYTES


def test_command_prints_a_table_and_who_holds_what(replayed, tmp_path):
    kept = tmp_path / "kept.trace.gz"
    ran = CliRunner().invoke(
        plan, ["job:make_step", "--gpu", "2GiB", "--out", str(kept), "--policy", "glake,native"]
    )
    assert ran.exit_code == 0, ran.output
    words = " ".join(ran.stdout.split())
    assert "does not fit in 2GiB" in words and "too many are live at once" in words
    assert "phase; module; operator" in words and "half (2 times)" in words
    assert kept.exists()


def test_command_prints_json(replayed, tmp_path):
    ran = CliRunner().invoke(
        plan, ["job:make_step", "--gpu", "8GiB", "--json", "--quick", "--context", "0"]
    )
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["capacity_bytes"] == 8 * GIB and found["trace"] is None
    assert [each["policy"] for each in found["policies"]] == ["glake", "native", "expandable"]
    assert set(found["fits"].values()) == {True}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a:b", "--gpu", "80GB"], "80GB"),
        (["a:b", "--gpu", "100MiB"], "nothing is left"),
        (["a:b", "--policy", "best"], "best"),
        (["a:b", "--policy", ","], "name at least one"),
        (["a:b", "--world", "0"], "world 0"),
        (["a:b", "-o", "key"], "KEY=VALUE"),
        (["a:b", "--seq", "128"], "-o seq=128"),
        (["a:b", "--out", "/proc/no-such/t.trace"], "no such folder"),
        (["a:b", "--out", "same.x", "--html", "./same.x"], "same file"),
        (["no-such-model"], "no-such-model"),
        (["gpt2", "--seq", "many"], "Error: --seq many: 'many' is not a length"),
        (["gpt2", "-o", "seq=many"], "Error: seq=many: "),
        (["gpt2", "--seq", "-4"], "Error: --seq -4: '-4' is not a length"),
        (["gpt2", "--seq"], "'--seq' requires an argument"),
        (["gpt2", "--strategy", "single", "--world", "2"], "Error: --strategy single uses one GPU"),
        (["a:b", "--gpu", "9TiB"], "more than 8.00 TiB"),
        (["a:b", "--gpu", "65TiB"], "more than 2^46 bytes (64 TiB)"),
    ],
)
def test_wrong_arguments_exit_with_two_and_one_clear_line(arguments, words):
    ran = CliRunner().invoke(plan, arguments)
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert words in ran.stderr


def test_a_job_that_leaves_is_told_with_its_line():
    def make_step(job):
        sys.exit("no data")

    with pytest.raises(SystemExit) as left:
        make_step(None)
    text = child._left(left.value)
    assert "test_plan.py" in text and 'in make_step: sys.exit("no data")' in text
    assert "the job called sys.exit('no data')" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_plan_that_is_ended_leaves_neither_trace_nor_process(tmp_path, number):
    told = tmp_path / "pid"
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "glake", "plan", "a:b", "--python", str(PROGRAMS / "stuck.sh")]
    variables = {**os.environ, "TMPDIR": str(temporary), "TOLD": str(told)}
    plan = subprocess.Popen(command, env=variables, preexec_fn=_default_signals)
    _await(told.exists)
    # A signal that interrupts Popen() leaves its process behind. A real recording process then ends
    # with its parent, but this stand-in does not, so the signal waits for Popen() to return.
    time.sleep(0.5)
    # The trace is in use and has no name, so it cannot be left behind.
    held = os.readlink(_deleted(plan.pid, temporary))
    assert held.startswith(f"{temporary}/") and held.endswith("(deleted)")
    assert list(temporary.iterdir()) == []
    plan.send_signal(number)
    status = plan.wait(30)
    assert list(temporary.iterdir()) == []
    if number == signal.SIGKILL:  # a real recording process ends by itself
        assert status == -number
        os.kill(int(told.read_text()), signal.SIGKILL)
        return
    assert status == (1 if number == signal.SIGINT else 128 + number)
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def _deleted(process, folder):
    return next(
        each
        for each in Path(f"/proc/{process}/fd").iterdir()
        if os.readlink(each).startswith(f"{folder}/")
    )


def _default_signals():
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)


def _await(done):
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_recording_process_ends_with_the_one_that_started_it(tmp_path):
    """It ends even if the process that started it is killed."""
    parent = subprocess.Popen([sys.executable, PROGRAMS / "starts_recording.py", tmp_path])
    _await((tmp_path / "started").exists)
    parent.kill()
    parent.wait()
    _await((tmp_path / "ended").exists)


def test_a_replay_that_fails_leaves_no_temporary_trace(replayed, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def broken(*_, **__):
        raise RuntimeError("books do not add up")

    monkeypatch.setattr(planner, "replay", broken)
    with pytest.raises(RuntimeError):
        planner.plan("job:make_step", gpu="8GiB")
    assert list(tmp_path.iterdir()) == []
