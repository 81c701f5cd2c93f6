"""The log of `make test-all`: steps that pass, fail, are cut off, or did not run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(ROOT / "tools"))
import test_all  # noqa: E402
from test_all import Step  # noqa: E402


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(test_all, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)  # main() leaves it; monkeypatch returns
    monkeypatch.setenv("PY", "")
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "signal", lambda *_: before)


def outcomes(log: Path) -> dict[str, str]:
    return {name: lines.splitlines()[0] for name, lines in test_all.read(log).items()}


def test_a_step_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    steps = (
        Step("first", "echo '=== 3 failed, 4 passed in 1.50s ==='; echo make: Error 1; exit 2"),
        Step("second", "echo the last; echo '}'"),
        Step("third", "exit 5", on_demand=True),
    )
    assert test_all.main([], steps, log) == 1
    first, second = (test_all.read(log)[name].splitlines() for name in ("first", "second"))
    assert first[0] == "first: FAILED (exit status 2)"
    assert first[3] == "  3 failed, 4 passed in 1.50s"
    assert second[0] == "second: passed" and second[2:] == [
        "  $ echo the last; echo '}'",
        "  the last",
    ]
    assert " s on " in second[1] and " cores, commit " in second[1]
    assert log.read_text().endswith("# Never run: third.\n")


def test_only_the_named_steps_run_and_the_others_keep_their_entry(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    steps = (
        Step("first", "true"),
        Step("second", "exit 1"),
        Step("third", "true", 1, True),
    )
    assert test_all.main([], steps, log) == 1
    kept = test_all.read(log)["first"]
    mended = (steps[0], Step("second", "true"), steps[2])
    assert test_all.main(["--only", "second", "third"], mended, log) == 0
    assert test_all.read(log)["first"] == kept
    assert outcomes(log) == {name: f"{name}: passed" for name in ("first", "second", "third")}
    assert "Never run" not in log.read_text()
    with pytest.raises(SystemExit) as refused:
        test_all.main(["--only", "forth"], mended, log)
    assert refused.value.code == 2


def test_a_step_over_its_limit_is_cut_off(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    steps = (Step("slow", "echo begun; sleep 60", 1 / 3600), Step("next", "true"))
    assert test_all.main([], steps, log) == 1
    assert outcomes(log)["slow"].startswith("slow: cut off after")
    assert test_all.read(log)["slow"].endswith("  begun\n")
    assert outcomes(log)["next"] == "next: passed"


def test_an_interrupted_run_keeps_what_it_did(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    command = [sys.executable, PROGRAMS / "interrupted_steps.py", tmp_path]
    path = {"PYTHONPATH": str(ROOT / "tools"), "PATH": "/usr/bin:/bin"}
    running = subprocess.Popen(command, env=path, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while not (tmp_path / "pid").exists() and time.monotonic() < end:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 130
    assert outcomes(log) == {"done": "done: passed", "long": "long: cut off by whoever ran it"}
    assert "# Never run: after." in log.read_text()


def test_the_committed_log_is_of_the_steps() -> None:
    names = {one.name for one in test_all.STEPS}
    assert len(names) == len(test_all.STEPS)
    assert set(test_all.read(test_all.LOG)) <= names
