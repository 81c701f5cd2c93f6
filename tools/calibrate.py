"""Turns a report of `make gpu` into the simulator's cost table of that device.

    tools/calibrate.py REPORT.json [--costs FILE] [--make-default] [--dry-run]

The cost of a driver call becomes [first, further]: microseconds for one 2 MiB page, and for each
further page. These are a straight line through the measured medians, with the least relative error.
The cost of a call over a range of mappings becomes [first, further, mapping]. `mapping` is for the
first page of each further mapping. A report of a simulated run is refused, because its figures are
not measured on hardware.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
COSTS = ROOT / "simcuda" / "costs.json"
PAGE = 2 << 20
# For each call: the case of the report's rows to which its line is fitted.
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
OVER_RANGES = ("cuMemSetAccess", "cuMemUnmap")
CONSTANT = {"cuEventRecord": "each", "cuEventQuery": "each", "cuStreamWaitEvent": "each",
            "cuEventCreate": "each", "cuEventDestroy": "each"}  # fmt: skip


def fit(points: list[tuple[int, float]]) -> tuple[float, float]:
    """(first, further) of the line first + (pages - 1) * further, fitted to (pages, us) points.

    It has the least squares of the relative error, so that a call over one page matters as much as
    one over a thousand. Neither part is negative. Raises ValueError if there is no point.
    """
    first, further = _least([((1, pages - 1), us) for pages, us in points])
    return first, further


def fit_range(points: list[tuple[int, int, float]]) -> tuple[float, float, float]:
    """(first, further, mapping) of a call over ranges, fitted to (pages, mappings, us) points.

    A call takes `first`, `mapping` for each further mapping, and `further` for each further page of
    a mapping. The error is that of `fit`.
    """
    first, further, mapping = _least(
        [((1, pages - mappings, mappings - 1), us) for pages, mappings, us in points]
    )
    return first, further, mapping


def _least(points: list[tuple[tuple[int, ...], float]]) -> list[float]:
    """The prices for which the sums come nearest to the measured microseconds. None is negative.

    Each point is (how often each price is paid, microseconds in all). Raises ValueError if there is
    no point.
    """
    if not points:
        raise ValueError("no measurement to fit")
    prices = len(points[0][0])
    subsets = (some for n in range(1, prices + 1) for some in combinations(range(prices), n))
    found = (_solve(points, some) for some in subsets)
    allowed = [each for each in found if each is not None and min(each) >= 0]
    return min(allowed, key=lambda each: _error(points, each))


def _error(points: list[tuple[tuple[int, ...], float]], prices: list[float]) -> float:
    costs = ((sum(n * price for n, price in zip(amounts, prices, strict=True)), us)
             for amounts, us in points)  # fmt: skip
    return sum((cost / us - 1) ** 2 for cost, us in costs)


def _solve(
    points: list[tuple[tuple[int, ...], float]], some: tuple[int, ...]
) -> list[float] | None:
    """The best prices if all except `some` are zero. None: the points do not tell these apart."""
    scaled = [[amounts[i] / us for i in some] for amounts, us in points]
    rows = [[sum(r[i] * r[j] for r in scaled) for j in range(len(some))] for i in range(len(some))]
    for i, row in enumerate(rows):
        row.append(sum(r[i] for r in scaled))
    for i, row in enumerate(rows):
        whole = sum(r[i] ** 2 for r in scaled)
        if row[i] <= 1e-12 * whole or whole == 0:
            return None
        for j, other in enumerate(rows):
            if j != i:
                factor = other[i] / row[i]
                other[:] = [b - factor * a for a, b in zip(row, other, strict=True)]
    prices = [0.0] * len(points[0][0])
    for i, (where, row) in enumerate(zip(some, rows, strict=True)):
        prices[where] = row[-1] / row[i]
    return prices


def table(report: dict[str, Any]) -> dict[str, list[float]]:
    """[first, further] or [first, further, mapping] microseconds of every call in the report.

    Raises ValueError if the report has no calls.
    """
    measured = report.get("measured", {}).get("driver calls")
    if report["about"]["driver"] != "cuda":
        raise ValueError("the report is of a simulated run; costs come from hardware alone")
    if not measured or not measured["rows"]:
        raise ValueError("the report has no driver calls: that stage did not run")
    clock = measured.get("clock_us", 0.0)
    found: dict[str, list[float]] = {}
    for call, case in {**BY_SIZE, **CONSTANT}.items():
        points: list[tuple[int, int, float]] = []
        for row in measured["rows"]:
            if (row["call"], row["case"], row["unit"]) != (call, case, "us"):
                continue
            mappings = row.get("handles", 1)
            size = row.get("handle_bytes", PAGE) * mappings
            points.append((max(1, size // PAGE), mappings, max(row["median"] - clock, 0.01)))
        if points and call in OVER_RANGES:
            first, *more = fit_range(points)
        elif points:
            first, *more = fit([(pages, us) for pages, _, us in points])
        if points:
            found[call] = [round(first, 3), *(round(each, 5) for each in more)]
    if not found:
        raise ValueError("the report has none of the calls the simulator prices")
    return found


def entry(report: dict[str, Any], source: str) -> dict[str, Any]:
    """The entry of the cost file for a report."""
    calls, about = table(report), report["about"]
    return {
        "seen": about["date"],
        "driver_version": about["driver_version"],
        "report": source,
        "calls": calls,
    }


def add(costs: Path, device: str, made: dict[str, Any], default: bool) -> None:
    """Writes the device's table into the cost file, and replaces an older one."""
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
    for heading in ("call", "over one 2 MiB page", "each further page", "each further mapping"):
        shown.add_column(heading, justify="left" if heading == "call" else "right")
    for call, (first, *more) in made["calls"].items():
        shown.add_row(call, f"{first:.3f}", *(f"{each:.5f}" for each in more))
    Console().print(shown)
    if not dry_run:
        add(costs, device, made, make_default)
        click.echo(f"{costs} has {device}; rebuild for the simulator to see it")


if __name__ == "__main__":
    main()
