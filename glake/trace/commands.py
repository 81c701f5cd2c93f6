"""`glake trace`: facts about a trace, traces from other records, and exports for other viewers."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator

import click
from rich.console import Console

from glake.trace import convert as conversion
from glake.trace import facts, memory_viz, perfetto
from glake.trace.cli import BadInput, _load, _parse_capacity, _parse_complete_after, _parse_policies
from glake.trace.replay import replay as run_replay
from glake.trace.units import size as size_text

_TABLE_WIDTH = 118
_FILE = click.Path(exists=True, dir_okay=False)
_OUT = click.Path(dir_okay=False)


@contextlib.contextmanager
def _bad_input() -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as bad:
        raise BadInput(str(bad)) from bad


def _refuse_same(source: str, out: str) -> None:
    if os.path.exists(out) and os.path.samefile(source, out):
        raise click.BadParameter(f"{out} is the input", param_hint="-o")


@click.group()
def trace() -> None:
    """Look into, make and export allocation traces (docs/trace-format.md)."""


@trace.command()
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--holders", default=15, show_default=True, help="Most tags to list.")
def info(file: str, as_json: bool, holders: int) -> None:
    """Count what is in the trace FILE, and say who held what at its peak."""
    with _bad_input():
        found = facts.scan(file)
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
    _refuse_same(file, output)
    with _bad_input():
        result = conversion.convert(file, output, device)
    click.echo(
        f"{output}: {result.events:,} events, peak live "
        f"{size_text(result.peak_live_bytes)}, {size_text(result.end_live_bytes)} live at the end"
    )
    for note in result.notes:
        click.echo(f"note: {note}", err=True)


@trace.command()
@click.argument("file", type=_FILE)
@click.option(
    "--to", "form", required=True, type=click.Choice(["perfetto", "memory_viz"]), help="What for."
)
@click.option("-o", "--output", required=True, type=_OUT, help="The file to write.")
@click.option(
    "--policy",
    "policy_names",
    callback=lambda ctx, param, value: _parse_policies(ctx, param, value) if value else [],
    help="perfetto: also the physical bytes of these policies, separated by commas.",
)
@click.option(
    "--capacity",
    default="unlimited",
    show_default=True,
    callback=_parse_capacity,
    metavar="BYTES",
    help="Memory of the policies' device, as for glake replay.",
)
@click.option(
    "--complete-after",
    default="512",
    show_default=True,
    callback=_parse_complete_after,
    metavar="EVENTS",
    help="As for glake replay.",
)
def export(
    file: str,
    form: str,
    output: str,
    policy_names: list[str],
    capacity: Callable[[int], int | None],
    complete_after: int,
) -> None:
    """Make a picture of the trace FILE for another program.

    perfetto: a JSON file for ui.perfetto.dev (gzip if it ends in .gz), with an event of the trace
    as a microsecond. memory_viz: a snapshot for pytorch.org/memory_viz; the trace has no addresses,
    so its blocks are laid out best fit, and nothing in it is about fragmentation.
    """
    _refuse_same(file, output)
    if form == "memory_viz":
        if policy_names:
            raise click.UsageError("--policy is for --to perfetto")
        with _bad_input():
            memory_viz.export(file, output)
        return
    results = []
    if policy_names:
        loaded = _load(file)
        size = capacity(loaded.peak_live_bytes)
        for policy in policy_names:
            results.append(run_replay(loaded, policy, capacity=size, complete_after=complete_after))
    with _bad_input():
        perfetto.export(file, output, results)
