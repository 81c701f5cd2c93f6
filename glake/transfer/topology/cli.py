"""`glake topo`: what joins GPUs and host, how fast, how that is known; plans of copies over it."""

import json
import os
import sys
from pathlib import Path

import click
from rich.console import Console

from glake.config import parse_bytes
from glake.errors import GlakeError
from glake.groups import BadInput, of_output
from glake.platform_file import load_platforms
from glake.transfer import topology as topologies
from glake.transfer.place import HOSTS
from glake.transfer.topology import dot
from glake.transfer.topology.topology import Topology

_TABLE_WIDTH = 118


@click.command()
@click.option("--preset", metavar="NAME", help="A platform installed with glake.")
@click.option("--file", "path", metavar="FILE", help="A platforms file (docs/topology.md).")
@click.option("--name", help="The platform of the file, if it has several.")
@click.option("--list", "as_list", is_flag=True, help="List the presets, or those of --file.")
@click.option("--json", "as_json", is_flag=True, help="Print a platforms file, nothing else.")
@click.option(
    "--picture",
    metavar="FILE",
    help="Draw it into FILE.png or FILE.svg, by Graphviz where that is installed, else by "
    "matplotlib. FILE.gv is the graph's text.",
)
@click.option("--probe", is_flag=True, help="Measure the rates with copies, and keep them.")
@click.option(
    "--plan",
    nargs=2,
    metavar="SRC DST",
    help="Say how a copy from SRC to DST (cpu, cpu:1, cuda:0) would go.",
)
@click.option(
    "--bytes",
    "size",
    metavar="SIZE",
    help="Size of the copy of --plan, such as 64MiB (default 1GiB).",
)
@click.option(
    "--host",
    type=click.Choice(HOSTS),
    help="Where the host memory of --plan lies: on the GPU's socket, or on all sockets by chunks "
    "(default) or by pages.",
)
def topo(
    preset: str | None,
    path: str | None,
    name: str | None,
    as_list: bool,
    as_json: bool,
    picture: str | None,
    probe: bool,
    plan: tuple[str, str] | None,
    size: str | None,
    host: str | None,
) -> None:
    """Show how GPUs and host memory are joined: this machine's, or a described one's.

    Without --preset and --file it shows what GLAKE_DRIVER names: this machine, or a simulated one.
    With --plan it shows how one copy would go instead.
    """
    try:
        _refuse_odd(preset, path, name, as_list, picture, probe)
        if plan is None and (size is not None or host is not None):
            raise BadInput("--bytes and --host belong to the copy of --plan SRC DST")
        if plan is not None and (as_list or picture):
            raise BadInput("--plan goes with --preset, --file, --probe, --bytes, --host and --json")
        if as_list:
            _list(path, as_json)
            return
        shown = _chosen(preset, path, name, probe)
        if plan is not None:
            _plan(shown, plan, size or "1GiB", host or "interleaved", as_json)
            return
        if picture is not None:
            _draw(shown, Path(picture))
    except (GlakeError, OSError) as error:
        if of_output(error):
            raise
        raise BadInput(" ".join(str(error).split("\n"))) from error
    if as_json:
        click.echo(shown.text(), nl=False)
    else:
        _print(shown)


def _refuse_odd(
    preset: str | None,
    path: str | None,
    name: str | None,
    as_list: bool,
    picture: str | None,
    probe: bool,
) -> None:
    if preset is not None and path is not None:
        raise BadInput("--preset and --file: give one of them")
    if name is not None and path is None:
        raise BadInput("--name chooses a platform of --file; a preset is --preset NAME")
    if as_list and (preset or name or picture or probe):
        raise BadInput("--list goes with --file and --json only")
    if probe and (preset or path):
        raise BadInput("--probe measures the machine GLAKE_DRIVER names, not a described one")
    if picture is None:
        return
    from glake.transfer import pictures

    file = Path(picture)
    if file.suffix.lower() not in (*dot.DRAWN, *dot.SUFFIXES):
        raise BadInput(f"--picture {picture}: give a name that ends in .png, .svg, .gv or .dot")
    if file.suffix.lower() in dot.SUFFIXES or _by_graphviz(file):
        pictures.check_place(file)
    else:
        pictures.check(file)
    if path is not None and os.path.exists(picture) and os.path.samefile(picture, path):
        raise BadInput(f"--picture {picture} is the input")


def _by_graphviz(file: Path) -> bool:
    return file.suffix.lower() in dot.DRAWN and dot.program() is not None


def _draw(topology: Topology, file: Path) -> None:
    if file.suffix.lower() in dot.SUFFIXES:
        dot.write(topology, file)
        return
    if _by_graphviz(file):
        dot.draw(topology, file)
        return
    from glake.transfer.topology.picture import draw

    draw(topology, file)


def _chosen(preset: str | None, path: str | None, name: str | None, probe: bool) -> Topology:
    if preset is not None:
        return topologies.from_preset(preset)
    if path is not None:
        return topologies.from_file(path, name)
    if probe:
        from glake.transfer.topology.probe import measure

        # A simulated machine is faster if its copies move no bytes. Nobody reads these bytes.
        os.environ["GLAKE_SIM_PHANTOM"] = os.environ.get("GLAKE_SIM_PHANTOM") or "1"
        return measure()
    return topologies.current()


def _plan(
    topology: Topology, between: tuple[str, str], size: str, host: str, as_json: bool
) -> None:
    from glake.transfer.planning import explain

    try:
        count = parse_bytes(size)
    except ValueError as error:
        raise BadInput(f"--bytes {size}: {error}") from error
    made = explain(dst=between[1], src=between[0], nbytes=count, platform=topology, host=host)
    click.echo(json.dumps(made.to_dict(), allow_nan=False) if as_json else str(made))


def _list(path: str | None, as_json: bool) -> None:
    from glake.transfer.topology.tables import presets

    platforms = load_platforms(path)
    if as_json:
        click.echo(json.dumps(list(platforms)))
    else:
        _console(0).print(presets(platforms))


def _print(shown: Topology) -> None:
    from glake.transfer.topology.tables import show, width

    show(shown, _console(width(shown.platform)))


def _console(columns: int) -> Console:
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = max(_TABLE_WIDTH, columns)
    return console
