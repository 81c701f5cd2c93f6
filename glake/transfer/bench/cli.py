"""`glake bench transfer`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from glake.errors import BenchFailed, GlakeError
from glake.groups import BadInput, Group
from glake.platforms import Platform
from glake.transfer.bench import run
from glake.transfer.bench import worlds as two_worlds

_TABLE_WIDTH = 118


@click.group(cls=Group)
def bench() -> None:
    """Measure glake beside its alternatives, without a GPU."""


@bench.command()
@click.option(
    "--platform", "given", metavar="NAME|all|made:COUNT|FILE", required=True,
    help="A preset (`glake topo --list`), all of them, COUNT made-up machines, or a platforms "
    "file (docs/topology.md).",
)  # fmt: skip
@click.option(
    "--sizes", multiple=True, metavar="SIZE,...",
    help="Of each copy.  [default: 256KiB to 1GiB]",
)  # fmt: skip
@click.option(
    "--only", multiple=True, metavar="NAME",
    help="A transfer to measure, such as d2h or 'h2d*'; may be given more than once.  "
    "[default: all]",
)  # fmt: skip
@click.option("--pages", is_flag=True, help="Also host memory that changes socket every page.")
@click.option(
    "--completion", type=click.Choice(run.COMPLETIONS),
    help="How a waiting thread learns that a copy is done: it asks and sleeps as on a GPU, at the "
    "cost of both, or it is woken, as no GPU does.  [default: polled]",
)  # fmt: skip
@click.option(
    "--order", type=click.Choice(run.ORDERS),
    help="How copies take their place in a stream: it is held for glake's threads, or all of it "
    "is enqueued at once (calls that enqueue then take their time on the clock).  "
    "[default: enqueued]",
)  # fmt: skip
@click.option(
    "--call-lock", type=click.Choice(run.CALL_LOCKS), default="context", show_default=True,
    help="Which calls of other threads an enqueueing call waits for: those into the same context, "
    "as a driver may do, or none.",
)  # fmt: skip
@click.option(
    "--worlds", is_flag=True,
    help="Measure with what calls and waits cost on a GPU, and without, and print a line for each "
    "platform. Leave out --completion and --order then.  [--sizes: " + two_worlds.SIZES + "]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, nothing else.")
@click.option(
    "--plot", metavar="FILE", help="Draw into FILE.png or FILE.svg.  [default: no picture]"
)
def transfer(
    given: str,
    sizes: tuple[str, ...],
    only: tuple[str, ...],
    pages: bool,
    completion: str | None,
    order: str | None,
    call_lock: str,
    worlds: bool,
    as_json: bool,
    plot: str | None,
) -> None:
    """Copies on a simulated machine: glake, a plain copy, GLake's equal shares, the bound.

    Exit code 2 for a platform, a size or a file that cannot be used.
    """
    if worlds and (completion is not None or order is not None):
        raise BadInput("--worlds measures with both of each: leave out --completion and --order")
    wanted = None if plot is None else Path(plot)
    try:
        if wanted is not None:
            _refuse_picture(wanted)
        platforms = run.platforms_of(given)
        found = run.sizes_of(sizes or ((two_worlds.SIZES,) if worlds else ()))
        rows: list[run.Row] = []
        one = completion or "polled", order or "enqueued"
        for how in (two_worlds.NEW, two_worlds.OLD) if worlds else (one,):
            rows += _measured(platforms, found, only, pages, *how, call_lock)
        if wanted is not None:
            from glake.transfer.bench.plot import draw

            draw(rows, wanted)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from error
    except (GlakeError, OSError) as error:
        raise BadInput(" ".join(str(error).split("\n"))) from error
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    from glake.transfer.bench.tables import show

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = _TABLE_WIDTH
    if worlds:
        two_worlds.show(rows, platforms, console)
        return
    show(rows, console)
    said = "--plot FILE draws a picture" if wanted is None else f"Drawn into {wanted}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)


def _refuse_picture(file: Path) -> None:
    """Raises BadInput if `file` cannot be drawn, before anything is measured."""
    from glake.transfer.pictures import check

    try:
        check(file)
    except GlakeError as error:
        raise BadInput(f"--plot: {error}") from error


def _measured(
    platforms: dict[str, Platform],
    sizes: list[int],
    only: tuple[str, ...],
    pages: bool,
    completion: str,
    order: str,
    call_lock: str,
) -> list[run.Row]:
    shown = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=shown, transient=True, disable=not shown.is_terminal
    ) as progress:
        tasks = {name: progress.add_task(name, total=None, start=False) for name in platforms}

        def advance(name: str, done: int, total: int) -> None:
            progress.start_task(tasks[name])
            progress.update(tasks[name], completed=done, total=total)

        return run.measure(
            platforms,
            sizes,
            pages=pages,
            completion=completion,
            order=order,
            call_lock=call_lock,
            transfers=only,
            progress=advance,
        )
