"""tools/calibrate.py makes the simulator's prices from a report. All figures are SYNTHETIC."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from own_python import output

import glake

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(ROOT / "tools"))

import calibrate  # noqa: E402

DEVICE = "SYNTHETIC GPU, no hardware"
PAGE = 2 << 20
TRUTH = {"cuMemCreate": (31.0, 0.4), "cuMemRelease": (12.0, 0.2), "cuMemMap": (1.5, 0.0),
         "cuMemSetAccess": (25.0, 0.3, 28.0), "cuMemUnmap": (30.0, 0.02, 20.0),
         "cuMemAddressReserve": (4.0, 0.001), "cuEventRecord": (1.2, 0.0)}  # fmt: skip


def synthetic_report(driver: str = "cuda") -> dict[str, Any]:
    """A report whose every call costs exactly what TRUTH says."""
    rows = []
    for call, (first, further, *mapping) in TRUTH.items():
        case = {**calibrate.BY_SIZE, **calibrate.CONSTANT}[call]
        sizes = [(1, handles) for handles in (1, 2, 8, 32, 512)]
        if case == "each":
            sizes = [(pages, 1) for pages in (1, 2, 8, 32, 512)]
        elif mapping:
            sizes += [(2, 64), (16, 64), (512, 8)]
        for pages, handles in sizes if call in calibrate.BY_SIZE else [(1, 1)]:
            us = first + (pages * handles - 1) * further + 0.05  # reading the clock takes 0.05
            us += sum((handles - 1) * (each - further) for each in mapping)
            row = {"call": call, "case": case, "times": 9, "unit": "us", "median": us}
            if call in calibrate.BY_SIZE:
                row |= {"handle_bytes": pages * PAGE, "handles": handles}
            rows.append(row)
        rows.append({"call": call, "case": "busy", "times": 9, "unit": "us", "median": 9999.0})
    about = {"driver": driver, "device": DEVICE, "date": "2000-01-01", "driver_version": "0"}
    return {"about": about, "measured": {"driver calls": {"clock_us": 0.05, "rows": rows}}}


def cost_file(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    path.write_text(calibrate.COSTS.read_text())
    return path


def test_the_fit_finds_the_line() -> None:
    for call, found in calibrate.table(synthetic_report()).items():
        assert len(found) == len(TRUTH[call])
        assert found[0] == pytest.approx(TRUTH[call][0], rel=1e-3)
        assert found[1:] == pytest.approx(TRUTH[call][1:], abs=1e-4)
    assert set(calibrate.table(synthetic_report())) == set(TRUTH)


@pytest.mark.parametrize(
    ("points", "first", "further"),
    [
        ([(1, 5.0)], 5.0, 0.0),
        ([(1, 5.0), (1, 5.0)], 5.0, 0.0),
        ([(1, 10.0), (11, 5.0)], None, 0.0),  # no negative slope
        ([(2, 1.0), (3, 2.0), (5, 4.0)], 0.0, 1.0),
    ],
)
def test_the_fit_stays_in_bounds(
    points: list[tuple[int, float]], first: float | None, further: float
) -> None:
    found = calibrate.fit(points)
    assert found[0] >= 0 and found[1] == pytest.approx(further, abs=1e-9)
    if first is not None:
        assert found[0] == pytest.approx(first, abs=1e-9)


@pytest.mark.parametrize(
    ("points", "wanted"),
    [
        ([(1, 1, 5.0)], (5.0, 0.0, 0.0)),
        # If each mapping has one page, nothing tells the price of a further page.
        ([(1, 1, 5.0), (2, 2, 8.0), (4, 4, 14.0)], (5.0, 0.0, 3.0)),
        ([(1, 1, 5.0), (2, 2, 8.0), (4, 2, 9.0), (8, 4, 16.0)], (5.0, 0.5, 3.0)),
        # Larger mappings cost less than small ones here, and no price may be negative.
        ([(1, 1, 5.0), (2, 2, 8.0), (100, 1, 4.9)], (None, 0.0, None)),
    ],
)
def test_the_fit_of_ranges(
    points: list[tuple[int, int, float]], wanted: tuple[float | None, ...]
) -> None:
    found = calibrate.fit_range(points)
    assert min(found) >= 0
    for price, expected in zip(found, wanted, strict=True):
        if expected is not None:
            assert price == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("device", "error"), [("NVIDIA H200", 0.2), ("NVIDIA H100 80GB HBM3", 0.3)]
)
def test_mappings_of_real_gpus(device: str, error: float) -> None:
    """Costs of calls depend on mappings and hardly on sizes. The H100's report is noisier."""
    file = f"2026-11-27-{device.replace(' ', '-')}-1.json"
    report = json.loads((ROOT / "benchmarks" / "gpu" / "results" / file).read_text())
    calls = calibrate.table(report)
    for call in calibrate.OVER_RANGES:
        first, further, mapping = calls[call]
        for row in report["measured"]["driver calls"]["rows"]:
            if row["call"] != call or row["case"] not in ("at once", "each"):
                continue
            mappings, pages = row["handles"], row["handles"] * (row["handle_bytes"] // PAGE)
            us = first + (pages - mappings) * further + (mappings - 1) * mapping
            assert us == pytest.approx(row["median"], rel=error), row
    committed = json.loads(calibrate.COSTS.read_text())["devices"][device]
    assert committed["calls"] == calls


def test_round_trip_to_the_simulator(tmp_path: Path) -> None:
    report, costs = tmp_path / "report.json", cost_file(tmp_path)
    report.write_text(json.dumps(synthetic_report()))
    done = CliRunner().invoke(calibrate.main, [str(report), "--costs", str(costs)])
    assert done.exit_code == 0, done.output
    content = json.loads(costs.read_text())
    was = json.loads(calibrate.COSTS.read_text())["default"]
    assert content["default"] == was and content["devices"][DEVICE]["report"] == report.name
    calls = content["devices"][DEVICE]["calls"]
    library = glake.library_path().with_name("libsimcuda.so")
    named = {"GLAKE_SIM_COST_FILE": str(costs), "GLAKE_SIM_COSTS": DEVICE}
    told = output(PROGRAMS / "prices.py", str(library), *calls, **named)
    for line, (first, *more) in zip(told.splitlines(), calls.values(), strict=True):
        wanted = [first, more[0], more[-1]]
        assert [float(each) for each in line.split()] == pytest.approx(wanted, abs=1e-3)


def test_a_default_is_asked_for(tmp_path: Path) -> None:
    report, costs = tmp_path / "report.json", cost_file(tmp_path)
    report.write_text(json.dumps(synthetic_report()))
    arguments = [str(report), "--costs", str(costs)]
    CliRunner().invoke(calibrate.main, [*arguments, "--dry-run", "--make-default"])
    assert json.loads(costs.read_text()) == json.loads(calibrate.COSTS.read_text())
    CliRunner().invoke(calibrate.main, [*arguments, "--make-default"])
    assert json.loads(costs.read_text())["default"] == DEVICE


def test_a_simulated_report_is_refused(tmp_path: Path) -> None:
    report, costs = tmp_path / "report.json", cost_file(tmp_path)
    for made in (synthetic_report("sim"), {"about": {"driver": "cuda", "device": "x"}}):
        report.write_text(json.dumps(made))
        done = CliRunner().invoke(calibrate.main, [str(report), "--costs", str(costs)])
        assert done.exit_code == 1 and "report" in done.output
    assert json.loads(costs.read_text()) == json.loads(calibrate.COSTS.read_text())


def test_nothing_is_measured_yet_or_says_where() -> None:
    """Each table in the committed cost file names the report that it is from."""
    content = json.loads(calibrate.COSTS.read_text())
    assert content["default"] in {"published", *content["devices"]}
    for device, made in content["devices"].items():
        assert "SYNTHETIC" not in device
        assert (ROOT / "benchmarks" / "gpu" / "results" / made["report"]).exists()
