"""The runner of `make gpu`: budgets, failures, reports. Figures here are SYNTHETIC."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(ROOT / "tools"))

from gpulane import preflight, render, report, runner  # noqa: E402
from gpulane.runner import Outcome, Runner, pytest_counts  # noqa: E402
from gpulane.stages import Stage, stages  # noqa: E402


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def program(name: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / name), *map(str, arguments))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(runner, "BUILD", tmp_path)

    def run(*made: Stage, seconds: float = 60) -> dict[str, Outcome]:
        reports: list[int] = []
        outcomes = Runner(seconds, {}, lambda text: None, lambda now: reports.append(len(now))).run(
            list(made)
        )
        assert reports == list(range(1, len(outcomes) + 1))  # reported after every stage
        return {each.name: each for each in outcomes}

    return run


def test_a_failing_stage_stops_no_other(run: Any) -> None:
    found = run(
        Stage("bad", program("says_why.py"), 20, group=1),
        Stage("needs it", python("pass"), 20, group=2, needs=("bad",)),
        Stage("good", python("pass"), 20, group=2, needs=("other",)),
        Stage("no such program", ("/no/such/program",), 20, group=3),
    )
    assert {name: each.status for name, each in found.items()} == {
        "bad": "failed",
        "needs it": "skipped",
        "good": "passed",
        "no such program": "failed",
    }
    assert found["bad"].exit_status == 3 and "why" in found["bad"].tail
    assert "bad failed" in found["needs it"].detail


def test_a_late_stage_is_killed_with_its_children(run: Any, tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = program("writes_late.py", mark, 8)[1:]
    started = time.monotonic()
    found = run(
        Stage("slow", program("waits_for_a_child.py", *child), 1, group=1),
        Stage("next", python("pass"), 20, group=2),
    )
    assert found["slow"].status == "timed out" and found["next"].status == "passed"
    assert time.monotonic() - started < 8
    time.sleep(max(0.0, 8.5 - (time.monotonic() - started)))  # by then the child would have written
    assert not mark.exists()


def test_no_time_left(run: Any) -> None:
    found = run(Stage("late", python("pass"), 20, group=1), seconds=2)
    assert found["late"].status == "skipped" and "time" in found["late"].detail


def test_time_is_kept_for_what_measures(run: Any) -> None:
    measure = Stage("measure", python("print(1)"), 40, group=2, measures=True)
    found = run(Stage("tests", python("pass"), 60, group=1), measure, seconds=50)
    assert found["tests"].budget == pytest.approx(50 - runner.KEPT * 40, abs=2)
    assert found["measure"].status == "passed" and found["measure"].budget == pytest.approx(40)


def test_a_command_is_told_its_time(run: Any) -> None:
    told = program("first_argument.py", "{seconds}")
    found = run(Stage("measure", told, 40, group=1, measures=True))
    assert 20 <= found["measure"].result <= 25


def test_results_are_taken_in(run: Any, tmp_path: Path) -> None:
    beside = tmp_path / "made.json"
    found = run(
        Stage("stdout", python("print('{\"rows\": 2}')"), 20, group=1, measures=True),
        Stage(
            "file", program("result_beside.py", beside), 20, group=2, measures=True, result=beside
        ),
        Stage("nothing", python("pass"), 20, group=3, measures=True),
    )
    assert found["stdout"].result == {"rows": 2} and found["file"].result == [1]
    assert found["nothing"].status == "failed" and "no result" in found["nothing"].detail


def test_a_background_stage_ends_before_anything_is_measured(run: Any, tmp_path: Path) -> None:
    mark = tmp_path / "done"
    slow = program("writes_late.py", mark, 1)
    looks = program("is_there.py", mark)
    found = run(
        Stage("slow", slow, 20, group=1, background=True),
        Stage("beside", looks, 20, group=2),
        Stage("measure", looks, 20, group=3, measures=True),
    )
    assert found["measure"].result == 1


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("77 passed in 12.3s", {"passed": 77, "names": []}),
        (
            "FAILED tests/a.py::b - boom\n=== 1 failed, 3 passed, 2 skipped in 1.00s (0:01) ===",
            {"failed": 1, "passed": 3, "skipped": 2, "names": ["tests/a.py::b"]},
        ),
        ("nothing of the kind", None),
    ],
)
def test_pytest_is_understood(text: str, counts: dict[str, Any] | None) -> None:
    assert pytest_counts(text) == counts


def side(step: float, tight: float | None, expandable_died: bool = False) -> dict[str, Any]:
    """SYNTHETIC figures of the training job."""
    row = {"rounds_ms": [[1.0]], "losses": ["0x1p0"], "oom": None, "step_ms": 1.0}
    died = {**row, "rounds_ms": [], "oom": {"step": 3, "text": "no"}, "step_ms": None}
    expandable = died if expandable_died else {**row, "ratio_to_expandable": 1.0}
    return {
        "longest": 512,
        "ample": {"batch": 8, "lengths": [1], "allocators": {
            "native": {**row, "ratio_to_native": 1.0, "losses_as_native": True},
            "glake": {**row, "ratio_to_native": step, "losses_as_native": True},
            "native again": {**row, "ratio_to_native": 1.001, "losses_as_native": True}}},
        "tight": {"limit_bytes": 1 << 30, "live_bytes": 1 << 29, "allocators": {
            "native": died, "expandable": expandable,
            "glake": {**row, "ratio_to_expandable": tight}}},
        "largest": {"limit_bytes": 1 << 30, "allocators": {
            "glake": {"batch": 4, "tries": [], "settled": True}}},
        "latency": {"glake": [{"bytes": 512, "python_ns": 900.0, "cpp_ns": 30.0}]},
        "lost": {"async": "gone"}, "errors": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "met"),
    [
        (side(1.009, 0.9), [True, True, True, True, True]),
        (side(1.02, 1.1), [True, True, False, False, True]),
        (side(1.0, None, expandable_died=True), [True, True, True, True, True]),
        (None, [True, None, None, None, None]),
    ],
)
def test_promises_are_held_against_the_figures(figures: Any, met: list[bool | None]) -> None:
    assert [row["met"] for row in report.targets(figures, [Outcome("x", "passed")])] == met
    assert report.targets(figures, [Outcome("x", "timed out")])[0]["met"] is False


def test_a_report_is_written_and_reads_well(tmp_path: Path) -> None:
    facts = report.about("sim") | {"date": "2000-01-02T03:04:05", "device": "SYNTHETIC (x) GPU"}
    path = report.place(tmp_path, facts)
    assert path.name == "2000-01-02-SYNTHETIC-x-GPU.json"
    rows = [{"call": "cuMemMap", "case": "each", "handle_bytes": 2 << 20, "handles": 1, "times": 3,
             "unit": "us", "median": 1.0, "p10": 1.0, "p90": 1.0, "least": 1.0}]  # fmt: skip
    rates = [{"call": "memset", "case": case, "bytes": 4096, "times": 3, "unit": "GB/s",
              "median": 2.0, "p10": 2.0, "p90": 2.0, "least": 2.0}
             for case in ("plain", "granules")]  # fmt: skip
    seen_rates = {"pinned": (49.0, 50.0), "pageable": (9.0, 10.0)}
    copied = [
        {**rates[0], "call": f"host to GPU, {kind}", "case": case, "bytes": 1 << 20, "median": rate}
        for kind, both in seen_rates.items()
        for case, rate in zip(("glake", "plain"), both, strict=True)
    ]
    outcomes = [
        Outcome(
            "suites", "failed", 3.0, 9.0, 1, tests={"failed": 1, "names": ["t::a"]}, tail="boom"
        ),
        Outcome("driver calls", "passed", result={"rows": rows}),
        Outcome("copies", "passed", result={"rows": rates}),
        Outcome("transfers", "passed", result={"rows": copied}),
        Outcome("side by side", "passed", result=side(1.0, 0.8)),
    ]
    made = report.build(facts, outcomes, 12.0)
    report.write(path, made, render.text(made))
    assert json.loads(path.read_text()) == json.loads(json.dumps(made))
    seen = {row["name"]: row["met"] for row in made["targets"]}
    assert seen["pinned copies, x a plain one"] is True
    assert seen["pageable copies, x torch's"] is False
    text = path.with_suffix(".txt").read_text()
    for wanted in ("SYNTHETIC (x) GPU", "t::a", "boom", "cuMemMap", "NOT MET", "OUT OF MEMORY",
                   "0.8000", "async", "1 x 2 MiB"):  # fmt: skip
        assert wanted in text, wanted
    assert report.place(tmp_path, facts).name == "2000-01-02-SYNTHETIC-x-GPU-2.json"


def test_all_stages_fit_in_ten_minutes() -> None:
    groups: dict[int, float] = {}
    for stage in stages("cuda"):
        if not stage.background:
            groups[stage.group] = max(groups.get(stage.group, 0), stage.seconds)
    names = [stage.name for stage in stages("cuda")]
    assert len(set(names)) == len(names)
    measuring = sum(stage.seconds for stage in stages("cuda") if stage.measures)
    assert measuring <= 340
    for stage in stages("cuda"):
        assert set(stage.needs) <= set(names)
    assert max(groups.values()) <= 220


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MODULES", {"no_such_module_at_all": "such-a-package"})
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = " ".join(preflight.missing())
    assert "such-a-package" in found and "no-such-compiler" in found
    assert "nothing-here" in (preflight.no_gpu("libnothing-here.so") or "")
