"""`glake dry-run`: an unmodified CUDA script on simulated GPUs, under each allocator."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from glake import outside
from glake.dryrun import html
from glake.dryrun import run as jobs
from glake.dryrun.gpus import MODELS
from glake.dryrun.result import DryRun, verdict
from glake.dryrun.run import ALLOCATORS, DEFAULT_ALLOCATORS
from glake.dryrun.stdin import RepeatedInput
from glake.ending import ended_tidily
from glake.units import micros, size


@click.command(
    "dry-run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=f"Models: {', '.join(MODELS)}.",
)
@click.option(
    "--gpus", default="1", show_default=True, help="Count, model (H100) or both: 4, 8xA100."
)
@click.option("--memory", help="Memory of each GPU, such as 62.6GiB. [default: the model's]")
@click.option(
    "--allocator",
    "allocators",
    default=",".join(DEFAULT_ALLOCATORS),
    show_default=True,
    help=f"Some of {', '.join(ALLOCATORS)}, separated by commas; the first two are PyTorch's.",
)
@click.option("--outside", help="Memory of each GPU that CUDA takes; 0: none. [default: estimated]")
@click.option("--numbers", is_flag=True, help="Compute every op by CPU kernels, in real memory.")
@click.option("--capacity-search", is_flag=True, help="Find the smallest GPU that runs the job.")
@click.option("--out", type=click.Path(file_okay=False), help="Keep memory snapshots in a folder.")
@click.option("--html", "html_path", type=click.Path(dir_okay=False), help="Write a report.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; the script's own output goes to stderr."
)
@click.option("-m", "as_module", is_flag=True, help="Run a module, as python -m does.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def dry_run(
    script: str, args: tuple[str, ...], html_path: str | None, as_json: bool, **given: Any
) -> None:
    """Run SCRIPT, unmodified, on simulated GPUs, and say what memory it needs.

    PyTorch's CUDA build runs it over stand-ins for CUDA's libraries. Kernels are counted, not run,
    and no memory lies behind tensors. Values read back are zero, except small ones that come from
    the host; with --numbers they are what the CPU computes. SCRIPT may be a launcher such as
    torchrun. ARGS are the script's own. A job that runs out of memory is a result: exit code 0.
    """
    if html_path is not None:
        html.require(html_path)
    console = Console(stderr=True)
    with ended_tidily():
        runs = jobs.dry_run(
            script,
            *args,
            gpus=given["gpus"],
            memory=given["memory"],
            allocators=given["allocators"].split(","),
            outside=given["outside"],
            numbers=given["numbers"],
            capacity_search=given["capacity_search"],
            keep=given["out"],
            as_module=given["as_module"],
            stdin=RepeatedInput(),
            output=sys.stderr.fileno() if as_json else None,
            progress=lambda text: console.print(
                f"[dim]dry run: {escape(text)}[/dim]", highlight=False
            ),
        )
    if as_json:
        click.echo(json.dumps([each.to_json() for each in runs], indent=1))
    else:
        show(runs, Console())
    if html_path is not None:  # last, so that no error of it loses what the runs found
        html.write(html_path, runs, " ".join((script, *args)))
        console.print(f"Report: {escape(html_path)}", highlight=False)


def show(runs: list[DryRun], console: Console) -> None:
    """Shows the verdict, a table, and the refused requests."""
    console.print(f"\n{verdict(runs)}", highlight=False)
    table = Table("", *(escape(each.allocator) for each in runs))
    for column in table.columns[1:]:
        column.justify = "right"

    def by(table: str) -> Callable[[DryRun], str]:
        return lambda run: micros(run.driver_us_by[table])

    rows: list[tuple[str, Callable[[DryRun], str]]] = [
        ("runs", lambda run: "yes" if run.fits else "no"),
        ("peak allocated", lambda run: size(run.peak_allocated_bytes)),
        ("peak reserved", lambda run: size(run.peak_reserved_bytes)),
        ("outside the allocator", lambda run: size(run.outside_bytes)),
        ("driver calls", lambda run: f"{run.driver_calls:,}"),
        *((f"driver time by {table}", by(table)) for table in runs[0].driver_us_by),
        ("optimizer steps", lambda run: str(run.steps)),
        ("ranks", lambda run: str(run.ranks)),
        ("host memory of a rank", lambda run: size(run.host_rss_bytes)),
    ]
    if any(each.smallest_capacity_bytes for each in runs):
        rows.insert(4, ("smallest GPU", lambda run: size(run.smallest_capacity_bytes or 0)))
    for name, figure in rows:
        table.add_row(name, *(figure(each) for each in runs))
    console.print(table)
    if len({each.steps for each in runs if each.fits}) > 1:
        console.print(
            "The allocators' runs did different numbers of steps, so their figures are not of the "
            "same job: does it go on from what an earlier run left?",
            highlight=False,
        )
    source = outside.source(runs[0].outside_bytes, runs[0].ranks)
    console.print(f"outside: {source}", style="dim", highlight=False)
    for each in runs:
        _show_refusal(each, console)
    for path in (path for each in runs for path in each.files):
        console.print(f"snapshot: {escape(path)} (pytorch.org/memory_viz)", highlight=False)


def _show_refusal(run: DryRun, console: Console) -> None:
    if run.oom is None:
        if run.refusals:
            requests = "1 request was" if run.refusals == 1 else f"{run.refusals:,} requests were"
            console.print(
                f"\n{run.allocator}: {requests} refused, and the script went on: it caught the "
                "error, or a thread of it ended by it.",
                highlight=False,
            )
        return
    refused = run.oom
    amount = size(refused.requested_bytes) if refused.requested_bytes else "memory"
    # A library of CUDA's does not say how much it asked for. The message names its call.
    called = "" if refused.requested_bytes else f" ({refused.message.partition(chr(10))[0]})"
    console.print(
        f"\n{run.allocator}: rank {refused.rank} was refused {amount} on cuda:{refused.device} "
        f"after {refused.step} steps{escape(called)}. It held then:",
        highlight=False,
    )
    for where, held, blocks in refused.holders:
        console.print(f"  {size(held):>12}  {blocks:6,} blocks  {escape(where)}", highlight=False)
