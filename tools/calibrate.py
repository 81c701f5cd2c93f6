"""Turns a report of `make gpu` into the simulator's cost table of that device.

    tools/calibrate.py REPORT.json [--costs FILE] [--make-default] [--dry-run]

Each driver call's cost becomes [first, further]: microseconds over one 2 MiB page and of each
further page, the straight line through the measured medians that has the least relative error.
Refuses a report of a simulated run: figures are what hardware showed, or stay the published ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
COSTS = ROOT / "simcuda" / "costs.json"
PAGE = 2 << 20
# The case of the rows that give each call's line over its sizes.
BY_SIZE = {
    "cuMemCreate": "each",
    "cuMemRelease": "each",
    "cuMemMap": "each",
    "cuMemSetAccess": "at once",
    "cuMemUnmap": "at once",
    "cuMemAddressReserve": "at once",
    "cuMemAddressFree": "at once",
    "cuMemAlloc": "each",
    "cuMemFree": "each",
}
CONSTANT = {"cuEventRecord": "each", "cuEventQuery": "each", "cuStreamWaitEvent": "each",
            "cuEventCreate": "each", "cuEventDestroy": "each"}  # fmt: skip


def fit(points: list[tuple[int, float]]) -> tuple[float, float]:
    """(first, further) of the line first + (pages - 1) * further through (pages, us) points.

    Least squares of the relative error, neither part negative: a call over one page matters as much
    as one over a thousand. ValueError: no point.
    """
    if not points:
        raise ValueError("no measurement to fit")
    lines = [_line(points), (_scale(points, lambda further: 1.0), 0.0)]
    lines += [(0.0, _scale(points, float))]
    allowed = [line for line in lines if line[0] >= 0 and line[1] >= 0]
    return min(allowed, key=lambda line: _error(points, *line))


def _error(points: list[tuple[int, float]], first: float, further: float) -> float:
    return sum(((first + (pages - 1) * further) / us - 1) ** 2 for pages, us in points)


def _scale(points: list[tuple[int, float]], shape: Any) -> float:
    """The best factor of one term alone."""
    over = sum(shape(pages - 1) / us for pages, us in points)
    under = sum((shape(pages - 1) / us) ** 2 for pages, us in points)
    return over / under if under > 0 else 0.0


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    aa = sum(1 / us**2 for _, us in points)
    ab = sum((pages - 1) / us**2 for pages, us in points)
    bb = sum(((pages - 1) / us) ** 2 for pages, us in points)
    a, b = sum(1 / us for _, us in points), sum((pages - 1) / us for pages, us in points)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb or bb == 0:
        return a / aa, 0.0
    return (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant


def table(report: dict[str, Any]) -> dict[str, list[float]]:
    """[first, further] microseconds of every call the report has figures of. ValueError: none."""
    measured = report.get("measured", {}).get("driver calls")
    if report["about"]["driver"] != "cuda":
        raise ValueError("the report is of a simulated run; costs come from hardware alone")
    if not measured or not measured["rows"]:
        raise ValueError("the report has no driver calls: that stage did not run")
    clock = measured.get("clock_us", 0.0)
    found: dict[str, list[float]] = {}
    for call, case in {**BY_SIZE, **CONSTANT}.items():
        points: list[tuple[int, float]] = []
        for row in measured["rows"]:
            if (row["call"], row["case"], row["unit"]) != (call, case, "us"):
                continue
            size = row.get("handle_bytes", PAGE) * row.get("handles", 1)
            points.append((max(1, size // PAGE), max(row["median"] - clock, 0.01)))
        if points:
            first, further = fit(points)
            found[call] = [round(first, 3), round(further, 5)]
    if not found:
        raise ValueError("the report has none of the calls the simulator prices")
    return found


def entry(report: dict[str, Any], source: str) -> dict[str, Any]:
    """What the cost file keeps of a report."""
    calls, about = table(report), report["about"]
    return {
        "seen": about["date"],
        "driver_version": about["driver_version"],
        "report": source,
        "calls": calls,
    }


def add(costs: Path, device: str, made: dict[str, Any], default: bool) -> None:
    """Writes the device's table into the cost file, in place of an older one."""
    content = json.loads(costs.read_text())
    content["devices"][device] = made
    if default:
        content["default"] = device
    costs.write_text(json.dumps(content, indent=1) + "\n")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--costs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              default=COSTS, help="The cost file.")  # fmt: skip
@click.option("--make-default", is_flag=True, help="The simulator uses it unless told otherwise.")
@click.option("--dry-run", is_flag=True, help="Only show it.")
def main(report: Path, costs: Path, make_default: bool, dry_run: bool) -> None:
    """Writes the device's costs, as REPORT saw them, into the simulator's cost file."""
    data = json.loads(report.read_text())
    device = data["about"]["device"]
    try:
        made = entry(data, report.name)
    except ValueError as error:
        raise click.ClickException(f"{report}: {error}") from None
    shown = Table(title=f"{device}, {made['seen']}: microseconds", title_justify="left")
    for heading in ("call", "over one 2 MiB page", "each further page"):
        shown.add_column(heading, justify="left" if heading == "call" else "right")
    for call, (first, further) in made["calls"].items():
        shown.add_row(call, f"{first:.3f}", f"{further:.5f}")
    Console().print(shown)
    if not dry_run:
        add(costs, device, made, make_default)
        click.echo(f"{costs} has {device}; rebuild for the simulator to see it")


if __name__ == "__main__":
    main()
