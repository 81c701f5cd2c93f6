"""The harness of the C++ tests reports cases that fail."""

import subprocess
from pathlib import Path

import pytest
from native_cases import ROOT, native

PROGRAM = Path(__file__).parent / "programs" / "failing_cases.cpp"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("harness") / "cases"
    compiler = native.find_tool("c++")
    include = str(ROOT / "tests" / "core")
    subprocess.run([compiler, "-std=c++17", "-I", include, PROGRAM, "-o", built], check=True)
    return built


def run(program: Path, *arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


def test_cases_after_a_failure_and_a_crash_are_run(program: Path) -> None:
    status, lines = run(program)
    assert status == 1
    assert lines[0] == "first_fails: FAILED exit status 3"
    assert lines[1].startswith("second_crashes: FAILED killed: Segmentation fault")
    assert lines[2] == "reached"
    assert lines[3].startswith("third_holds: ok (")
    assert lines[4] == "1 passed, 2 failed"


def test_one_case_runs_in_the_program(program: Path) -> None:
    assert run(program, "--filter", "first*")[0] == 3


def test_cases_are_listed(program: Path) -> None:
    assert run(program, "--list") == (0, ["first_fails", "second_crashes", "third_holds"])


def test_help_and_what_is_no_option_run_nothing(program: Path) -> None:
    status, lines = run(program, "--help")
    assert status == 0 and lines[0].startswith("usage: ")
    for words in (["--filter"], ["--filter", ""], ["--only", "third*"], ["--list", "--all"]):
        done = subprocess.run([program, *words], capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == "", words
        assert "usage: " in done.stderr
        assert words[-1] in done.stderr or words[0] in done.stderr
