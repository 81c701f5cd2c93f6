"""`glake replay`: which allocation policy fits a recorded job, and at what cost."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from glake.trace import html, report
from glake.trace.replay import NEVER, ReplayResult, load_trace, policies, require_policy
from glake.trace.replay import replay as run_replay

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_MAX_BYTES = 1 << 46
_GRANULE = 2 << 20
_TABLE_WIDTH = 118


class BadInput(click.ClickException):
    """A trace that cannot be read."""

    exit_code = 2


def _parse_capacity(
    ctx: click.Context, param: click.Parameter, value: str
) -> Callable[[int], int | None]:
    """A function from a trace's peak live bytes to the device's bytes, None being unlimited."""
    text = value.strip().lower()
    if text == "unlimited":
        return lambda live: None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    unit = match.group(2) if match else ""
    if match is None or (unit != "x" and unit not in _UNITS):
        raise click.BadParameter(
            f"{value!r}: give bytes (85899345920), a size (80GiB), "
            "a multiple of the peak live bytes (1.05x), or unlimited"
        )
    number = Fraction(match.group(1))
    if unit == "x":
        if not 0 < number <= 1000:
            raise click.BadParameter(f"{value!r} is not above 0x and at most 1000x")

        def times_live(live: int) -> int:
            size = int(live * number)
            if live and not _GRANULE <= size <= _MAX_BYTES:
                raise click.UsageError(
                    f"--capacity {value} of {live:,} live bytes is {size:,} bytes: "
                    "a device has between 2 MiB (one granule) and 2^46 bytes"
                )
            return max(size, _GRANULE)

        return times_live
    size = int(number * _UNITS[unit])
    if not _GRANULE <= size <= _MAX_BYTES:
        raise click.BadParameter(
            f"{value!r} is not between 2 MiB (one granule) and 2^46 bytes (64 TiB)"
        )
    return lambda live: size


def _parse_complete_after(ctx: click.Context, param: click.Parameter, value: str) -> int:
    text = value.strip().lower()
    if text == "never":
        return NEVER
    if not re.fullmatch(r"\d{1,18}", text):
        raise click.BadParameter(f"{value!r}: give a count of events, 0 or above, or never")
    return int(text)


def _parse_policies(ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    try:
        for name in names:
            require_policy(name)
    except RuntimeError as unknown:
        raise click.BadParameter(str(unknown)) from unknown
    if not names:
        raise click.BadParameter(f"name at least one of {', '.join(policies())}")
    return names


def _load(path: str) -> Any:
    try:
        return load_trace(path)
    except (ValueError, OSError) as bad:
        raise BadInput(str(bad)) from bad


def _check_outputs(traces: tuple[str, ...], outputs: dict[str, str | None]) -> None:
    """Before a long replay: its files can be written, and none is an input or another's."""
    written: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        if not os.path.isdir(os.path.dirname(real)):
            raise click.BadParameter(f"{path}: there is no such folder", param_hint=option)
        if any(real == os.path.realpath(trace) for trace in traces):
            raise click.BadParameter(f"{path} is an input", param_hint=option)
        if real in written:
            raise click.BadParameter(f"{path} is {written[real]}'s file too", param_hint=option)
        written[real] = option


@click.command()
@click.argument(
    "traces",
    nargs=-1,
    required=True,
    metavar="TRACE...",
    type=click.Path(exists=True, dir_okay=False),
)
@click.option(
    "--policy",
    "policy_names",
    default="glake,compact,native,expandable",
    show_default=True,
    callback=_parse_policies,
    help="Policies to compare, separated by commas: glake, compact, native, expandable, gmlake "
    "(gmlake:64MiB stitches from that size on), bound.",
)
@click.option(
    "--capacity",
    default="unlimited",
    show_default=True,
    callback=_parse_capacity,
    metavar="BYTES",
    help="Memory of the device: bytes, 80GiB, 1.05x (times the peak live bytes), unlimited.",
)
@click.option("--find-min-capacity", is_flag=True, help="Bisect the smallest one that fits.")
@click.option(
    "--complete-after",
    default="512",
    show_default=True,
    callback=_parse_complete_after,
    metavar="EVENTS",
    help="Events until work enqueued on a stream completes, or never.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list and nothing else.")
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Draw live and physical memory over time into this file (PNG).",
)
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Write a report into this file: charts, who holds what, what to change (docs/report.md).",
)
def replay(
    traces: tuple[str, ...],
    policy_names: list[str],
    capacity: Callable[[int], int | None],
    find_min_capacity: bool,
    complete_after: int,
    as_json: bool,
    plot_path: str | None,
    html_path: str | None,
) -> None:
    """Replay allocation traces under allocation policies, without a GPU.

    TRACE is what a job allocated and freed (docs/trace-format.md), plain or gzip. glake and
    compact are glake's own core on a simulated driver; native and expandable are models of
    PyTorch's caching allocator, gmlake one of GMLake; bound is what no allocator can go below.
    Running out of memory is a result: the exit code stays 0.
    """
    if plot_path is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib, which is not installed")
    if html_path is not None and not html.available():
        raise click.UsageError("--html needs Jinja2, which is not installed")
    _check_outputs(traces, {"--plot": plot_path, "--html": html_path})
    loaded = [_load(path) for path in traces]
    results = _run_all(loaded, policy_names, capacity, find_min_capacity, complete_after)
    if plot_path is not None:
        try:
            report.plot(results, plot_path, loaded)
        except (OSError, ValueError) as bad:
            raise click.BadParameter(str(bad), param_hint="--plot") from bad
    if html_path is not None:
        _write_html(html_path, loaded, results)
    if as_json:
        click.echo(json.dumps([report.to_json(each) for each in results], indent=1))
        return
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    report.print_table(results, console)


def _write_html(path: str, traces: list[Any], results: list[ReplayResult]) -> None:
    with Progress(
        SpinnerColumn(), TextColumn("report: {task.description}"), console=Console(stderr=True),
        transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("")
        try:
            html.write(
                path,
                traces,
                results,
                progress=lambda policy: progress.update(task, description=policy),
            )
        except OSError as bad:
            raise click.BadParameter(str(bad), param_hint="--html") from bad
        except RuntimeError as broken:
            raise click.ClickException(str(broken)) from broken


def _run_all(
    traces: list[Any],
    policy_names: list[str],
    capacity: Callable[[int], int | None],
    find_min_capacity: bool,
    complete_after: int,
) -> list[ReplayResult]:
    results = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for trace in traces:
            live: int = trace.peak_live_bytes
            for policy in policy_names:
                task = progress.add_task(policy, total=1.0)

                def advance(share: float, task: TaskID = task) -> None:
                    progress.update(task, completed=share)

                try:
                    result = run_replay(
                        trace,
                        policy,
                        capacity=capacity(live),
                        complete_after=complete_after,
                        find_min_capacity=find_min_capacity,
                        progress=advance,
                    )
                except RuntimeError as broken:
                    raise click.ClickException(f"{policy}: {broken}") from broken
                progress.remove_task(task)
                results.append(result)
    return results
