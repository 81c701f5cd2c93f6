"""tools/classes.py: which classes break a rule (programs/classes.samples has the cases)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "unit" / "programs" / "classes.samples"
sys.path.insert(0, str(ROOT / "tools"))
import classes  # noqa: E402

CASES = dict(case.split("\n", 1) for case in SAMPLES.read_text().split("\n== ")[1:])


def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """The check's output for two trees in `tmp_path`. If the exit code is 0, it must be empty."""
    monkeypatch.setattr(classes, "SOURCES", (tmp_path / "one", tmp_path / "two"))
    monkeypatch.setattr(classes, "MAY", {})
    code = classes.main([])
    lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    assert code == (1 if lines else 0)
    return lines


@pytest.mark.parametrize("name", CASES)
def test_samples(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected, *files = f"\n{CASES[name]}".split("\n-- ")
    for file in files:
        path, text = file.split("\n", 1)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    told = [line.removeprefix("!! ") for line in expected.splitlines() if line]
    assert check(tmp_path, monkeypatch, capsys) == told


@pytest.mark.parametrize(("methods", "told"), [(40, []), (41, ["one/a.h: A has 41 methods"])])
def test_many_methods(
    methods: int,
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = "".join(f"  void f{i}();\n" for i in range(methods))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.h").write_text(f"class A {'{'}\n{body}  A() = default;\n{'}'};\n")
    assert check(tmp_path, monkeypatch, capsys) == told


def test_an_exception_that_nothing_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert classes.main([]) == 0
    monkeypatch.setitem(classes.MAY, "simcuda/no.h: classes", "a test")
    assert classes.main([]) == 1
    assert capsys.readouterr().out == "MAY has what is not there: simcuda/no.h: classes\n"
