"""`glake trace`: facts about a trace, traces from other records, and exports for other viewers."""

from __future__ import annotations

import dataclasses
import json
import sys

import click
from rich.console import Console

from glake.groups import Group
from glake.trace import convert as conversion
from glake.trace import facts, memory_viz, perfetto
from glake.trace.inputs import InputFile, check_output, rereadable
from glake.trace.replay import load_trace
from glake.trace.replay import replay as run_replay
from glake.trace.replay_options import Capacity, device_options, parse_policies
from glake.units import printable
from glake.units import size as size_text

_TABLE_WIDTH = 118
_FILE = InputFile()
_OUT = click.Path(dir_okay=False)


@click.group(cls=Group)
def trace() -> None:
    """Look into, make and export allocation traces (docs/trace-format.md)."""


@trace.command()
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--holders", default=15, show_default=True, help="Most tags to list.")
def info(file: str, as_json: bool, holders: int) -> None:
    """Count what is in the trace FILE, and say who held what at its peak."""
    with rereadable(file) as path:
        found = dataclasses.replace(facts.scan(path), trace=file)
    if as_json:
        click.echo(json.dumps(facts.to_json(found), indent=1))
        return
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    facts.print_facts(found, console, max(holders, 0))


@trace.command()
@click.argument("file", type=_FILE)
@click.option("-o", "--output", required=True, type=_OUT, help="job.trace or job.trace.gz.")
@click.option("--device", type=click.IntRange(min=0), help="The device to take, if several.")
def convert(file: str, output: str, device: int | None) -> None:
    """Make a trace of FILE: a PyTorch memory snapshot with history, or a log of RMM's.

    A snapshot is the pickle that torch.cuda.memory._dump_snapshot() or glake.dump_snapshot()
    writes. Nothing in the pickle is run.
    """
    check_output(file, output)
    with rereadable(file) as path:
        result = conversion.convert(path, output, device)
    click.echo(
        f"{output}: {result.events:,} events, peak live "
        f"{size_text(result.peak_live_bytes)}, {size_text(result.end_live_bytes)} live at the end"
    )
    for note in result.notes:
        click.echo(printable(f"note: {note}"), err=True)


@trace.command()
@click.argument("file", type=_FILE)
@click.option(
    "--to", "form", required=True, type=click.Choice(["perfetto", "memory_viz"]), help="What for."
)
@click.option("-o", "--output", required=True, type=_OUT, help="The file to write.")
@click.option(
    "--policy",
    "policy_names",
    callback=parse_policies,
    help="perfetto: also the physical bytes of these policies, separated by commas.",
)
@device_options
def export(
    file: str,
    form: str,
    output: str,
    policy_names: list[str],
    capacity: Capacity,
    complete_after: int,
) -> None:
    """Make a picture of the trace FILE for another program.

    perfetto: a JSON file for ui.perfetto.dev (gzip if it ends in .gz), with an event of the trace
    as a microsecond. memory_viz: a snapshot for pytorch.org/memory_viz; the trace has no addresses,
    so its blocks are laid out best fit, and nothing in it is about fragmentation.
    """
    check_output(file, output)
    if form == "memory_viz" and policy_names:
        raise click.UsageError("--policy is for --to perfetto")
    with rereadable(file) as path:
        if form == "memory_viz":
            memory_viz.export(path, output)
            return
        results = []
        if policy_names:
            loaded = load_trace(path)
            size = capacity(loaded.peak_live_bytes)
            for policy in policy_names:
                try:
                    done = run_replay(loaded, policy, capacity=size, complete_after=complete_after)
                except RuntimeError as broken:
                    raise click.ClickException(f"{file} under {policy}: {broken}") from broken
                results.append(done)
        perfetto.export(path, output, results)
