"""`glake relayd`: the relay service of this user and topology, and its books."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from glake.errors import BadMessage, GlakeError, RelayRefused, RelayUnavailable
from glake.groups import BadInput, of_output
from glake.transfer import topology as topologies
from glake.transfer.relay import directory, starting
from glake.transfer.relay.directory import Files
from glake.transfer.topology import Topology

_WIDTH = 110


@click.command()
@click.option("--preset", metavar="NAME", help="Serve a platform installed with glake.")
@click.option("--file", "path", metavar="FILE", help="Serve a platform of a platforms file.")
@click.option("--name", help="The platform of the file, if it has several.")
@click.option("--described", metavar="FILE", hidden=True)
@click.option(
    "--idle", type=click.FloatRange(0.05, 1e6), metavar="SECONDS",
    help="End after this long without a client, from the start on (default: never).",
)  # fmt: skip
@click.option(
    "--relays", type=click.IntRange(0, 15), metavar="COUNT",
    help="Most GPUs lent to one client (default: 4, because it needs a CUDA context on each; a "
    "client that sees one GPU needs none, and is lent all).",
)  # fmt: skip
@click.option("--status", is_flag=True, help="Show the services under way and their clients.")
@click.option("--stop", is_flag=True, help="End the services under way.")
@click.option("--json", "as_json", is_flag=True, help="With --status or --stop: print JSON.")
def relayd(
    preset: str | None,
    path: str | None,
    name: str | None,
    described: str | None,
    idle: float | None,
    relays: int | None,
    status: bool,
    stop: bool,
    as_json: bool,
) -> None:
    """Lend GPUs and parts of links to the processes of this user, for their copies.

    Processes of one job (torchrun) start the service themselves when they need it. It serves the
    platform of --preset or --file, else the one that GLAKE_DRIVER names. With --preset or --file,
    --status and --stop apply to the service of that platform alone.
    """
    try:
        if status or stop:
            _refuse(status and stop, "--status and --stop: give one of them")
            _refuse(idle is not None or relays is not None, "--idle and --relays are for a start")
            _ask("stop" if stop else "status", _only(preset, path, name), as_json)
            return
        _refuse(as_json, "--json goes with --status or --stop")
        topology = _topology(preset, path, name, described)
        _serve(topology, idle, relays, by_hand=described is None)
    except (GlakeError, OSError) as error:
        if of_output(error):
            raise
        raise BadInput(" ".join(str(error).split("\n"))) from error


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise BadInput(why)


def _topology(
    preset: str | None, path: str | None, name: str | None, described: str | None = None
) -> Topology:
    _refuse(preset is not None and path is not None, "--preset and --file: give one of them")
    _refuse(name is not None and path is None, "--name chooses a platform of --file")
    if described is not None:
        return directory.stored(Path(described))
    if preset is not None:
        return topologies.from_preset(preset)
    if path is not None:
        return topologies.from_file(path, name)
    return topologies.current()


def _only(preset: str | None, path: str | None, name: str | None) -> str | None:
    if preset is None and path is None and name is None:
        return None
    return directory.key_of(_topology(preset, path, name))


def _serve(topology: Topology, idle: float | None, relays: int | None, by_hand: bool) -> None:
    from glake.transfer.relay import service

    files = Files(directory.private(), directory.key_of(topology))
    if by_hand:
        click.echo(f"relay service over {topology.name}; its log: {files.log}", err=True)
    if not service.serve(topology, files, relays, idle) and by_hand:
        raise BadInput(f"a relay service over {topology.name} runs already (glake relayd --status)")


def _ask(what: str, only: str | None, as_json: bool) -> None:
    where = directory.place()
    sockets = sorted(directory.private(where).glob("*.sock")) if where.exists() else []
    found: list[dict[str, Any]] = []
    failed: list[str] = []
    for each in sockets:
        if only is not None and each.stem != only:
            continue
        try:
            answer = starting.ask(Files(where, each.stem), what)
        except (OSError, BadMessage, RelayRefused, RelayUnavailable) as error:
            failed.append(f"{each}: {error}")
            click.echo(failed[-1], err=True)
            continue
        if answer is not None:
            found.append(answer.books)
    if as_json:
        click.echo(json.dumps({"services": found, "failed": failed}))
    elif not found and not failed:
        click.echo("no relay service is running")
    for books in () if as_json else found:
        if what == "stop":
            click.echo(f"stopped: {books['topology']}, process {books['pid']}")
        else:
            _show(books)
    if failed:
        click.get_current_context().exit(1)


def _show(books: dict[str, Any]) -> None:
    from glake.transfer.relay.tables import table

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(table(books))
