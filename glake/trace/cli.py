"""`glake replay`: which allocation policy fits a recorded job, and at what cost."""

from __future__ import annotations

import json
import os
import sys
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

from glake import extras
from glake.trace import html, report
from glake.trace.inputs import InputFile, bad_input
from glake.trace.replay import ReplayResult, load_trace
from glake.trace.replay import replay as run_replay
from glake.trace.replay_options import Capacity, device_options, parse_costs, parse_policies

_TABLE_WIDTH = 126


def _load(path: str) -> Any:
    with bad_input():
        return load_trace(path)


def _check_outputs(traces: tuple[str, ...], outputs: dict[str, str | None]) -> None:
    """Checks before a long replay that its files can be written, and that none is an input or
    another output."""
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
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", type=InputFile())
@click.option(
    "--policy",
    "policy_names",
    default="glake,compact,native,expandable",
    show_default=True,
    callback=parse_policies,
    help="Policies to compare, separated by commas: glake, compact, native, expandable, gmlake "
    "(gmlake:64MiB stitches from that size on), bound.",
)
@device_options
@click.option(
    "--costs",
    callback=parse_costs,
    metavar="TABLES",
    help="Tables of prices for the driver's calls, separated by commas: published, a100-kvcached, "
    "or a device of the simulator's cost file. The first prices JSON's plain figures.  [default: "
    "GLAKE_SIM_COSTS, published, a100-kvcached]",
)
@click.option("--find-min-capacity", is_flag=True, help="Search the smallest capacity that fits.")
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
    capacity: Capacity,
    costs: list[str] | None,
    find_min_capacity: bool,
    complete_after: int,
    as_json: bool,
    plot_path: str | None,
    html_path: str | None,
) -> None:
    """Replay allocation traces under allocation policies, without a GPU.

    TRACE is what a job allocated and freed (docs/trace-format.md), plain or gzip. It is a file, a
    pipe, - for standard input, or sample for the trace that comes with glake. The policies glake
    and compact are glake's own core on a simulated driver. native and expandable are models of
    PyTorch's caching allocator, and gmlake is a model of GMLake. No allocator can go below bound.
    Running out of memory is a result: the exit code stays 0.
    """
    if plot_path is not None and not extras.present("matplotlib"):
        raise click.UsageError(extras.missing("--plot", "matplotlib", "report"))
    if html_path is not None and not html.available():
        raise click.UsageError(html.absent("--html"))
    _check_outputs(traces, {"--plot": plot_path, "--html": html_path})
    loaded = [_load(path) for path in traces]
    sizes = [capacity(each.peak_live_bytes) for each in loaded]
    results = _run_all(
        loaded,
        sizes,
        policy_names,
        find_min_capacity=find_min_capacity,
        complete_after=complete_after,
        costs=costs,
        layout_at=None if html_path is None else "peak",
    )
    _print(results, as_json)
    # Last, so that no error of a file loses what the replays found.
    if plot_path is not None:
        try:
            report.plot(results, plot_path, loaded)
        except (OSError, ValueError) as bad:
            raise click.BadParameter(str(bad), param_hint="--plot") from bad
    if html_path is not None:
        _write_html(html_path, loaded, results)


def _print(results: list[ReplayResult], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([report.to_json(each) for each in results], indent=1))
        return
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    report.print_table(results, console)


def _write_html(path: str, traces: list[Any], results: list[ReplayResult]) -> None:
    try:
        html.write(path, traces, results)
    except OSError as bad:
        raise click.BadParameter(str(bad), param_hint="--html") from bad


def _run_all(
    traces: list[Any],
    sizes: list[int | None],
    policy_names: list[str],
    **options: Any,
) -> list[ReplayResult]:
    results = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = Console(stderr=True)
    with Progress(
        *columns, console=shown, transient=True, disable=not shown.is_terminal
    ) as progress:
        for trace, size in zip(traces, sizes, strict=True):
            for policy in policy_names:
                task = progress.add_task(policy, total=1.0)

                def advance(share: float, task: TaskID = task) -> None:
                    progress.update(task, completed=share)

                try:
                    result = run_replay(
                        trace,
                        policy,
                        capacity=size,
                        progress=advance,
                        **options,
                    )
                except RuntimeError as broken:
                    raise click.ClickException(f"{trace.name} under {policy}: {broken}") from broken
                progress.remove_task(task)
                results.append(result)
    return results
