"""Steps that the Makefile runs on first use: each says that it runs, and where its output is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
import cpu_torch  # noqa: E402
import step  # noqa: E402


def run(log: Path, *command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(TOOLS / "step.py"), str(log), "do it", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_a_step_is_one_line_before_and_one_after(tmp_path: Path) -> None:
    log = tmp_path / "build" / "a.log"
    done = run(log, sys.executable, "-c", "print('words')")
    assert done.returncode == 0 and done.stdout.splitlines()[0] == f"-- do it ({log})"
    assert len(done.stdout.splitlines()) == 2 and "words" not in done.stdout
    assert log.read_text() == "words\n"


def test_a_step_shows_what_the_compiler_warned_of(tmp_path: Path) -> None:
    warning = "a.cpp:97:48: warning: unused parameter 'b' [-Wunused-parameter]"
    done = run(tmp_path / "a.log", "printf", "%s\n", "words", warning, "warning: no files matching")
    assert done.returncode == 0 and done.stdout.splitlines()[2:] == [f"   {warning}"]


def test_a_step_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    done = run(log, sys.executable, str(PROGRAMS / "fails_loudly.py"))
    assert done.returncode == 3 and "\n999\n" in done.stdout and "\n900\n" not in done.stdout
    assert f"failed with status 3: all of it is in {log}" in done.stdout
    assert run(log, sys.executable, str(PROGRAMS / "kills_itself.py")).returncode == 137
    absent = run(log, "./no-such-program")
    assert absent.returncode == 1 and "do it cannot start" in absent.stderr


def test_a_long_step_says_what_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step, "_ELSEWHERE", 0.3)
    command = [sys.executable, str(PROGRAMS / "builds_slowly.py")]
    assert step.run(tmp_path / "a.log", "build", command) == 0
    assert "s  [2/26] Building\n" in capsys.readouterr().out


def test_torch_is_the_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for in pip's own sources, then in PyTorch's, and always as the build `+cpu`."""
    tried: list[list[str]] = []

    def refuse(command: list[str]) -> subprocess.CompletedProcess[str]:
        tried.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(cpu_torch.subprocess, "run", refuse)
    assert not cpu_torch.install("2.13.0")
    assert all("torch==2.13.0+cpu" in each for each in tried)
    assert cpu_torch.INDEX not in tried[0] and cpu_torch.INDEX in tried[1]


def test_the_version_is_that_of_the_extra() -> None:
    wanted = cpu_torch.pinned(TOOLS.parent / "pyproject.toml")
    assert wanted and f'"torch=={wanted}"' in (TOOLS.parent / "pyproject.toml").read_text()


def test_make_proofs_names_every_file_with_proofs(proof_files: set[str]) -> None:
    """Alone this test sees the files that pytest was given. `make test` gives it all."""
    text = (TOOLS.parent / "Makefile").read_text().replace("\\\n", "")
    (listed,) = re.findall(r"^PROOFS := \$\(addprefix tests/,(.*)\)$", text, re.MULTILINE)
    named = {f"tests/{name}" for name in listed.split()}
    assert all((TOOLS.parent / name).is_file() for name in named)
    assert proof_files <= named, "make proofs leaves these out; add them to PROOFS in the Makefile"
