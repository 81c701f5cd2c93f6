"""The `glake` command. Each subcommand is a few lines over the library."""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import glake
from glake import config, include_path, library_path
from glake.errors import GlakeError
from glake.groups import Group, of_output
from glake.info import describe, no_device

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
# These modules import much that other commands do not need. So they are imported only when needed.
_LAZY = {
    "replay": ("glake.trace.cli", "Replay allocation traces through allocation policies."),
    "plan": ("glake.trace.plan_cli", "Say whether a job fits a GPU. Needs no GPU."),
    "dry-run": ("glake.dryrun.cli", "Run a CUDA script on simulated GPUs, and say what it needs."),
    "build-adapter": ("glake.allocator.cli", "Compile the CUDA adapter for the installed torch."),
    "trace": ("glake.trace.commands", "Look into, make and export allocation traces."),
    "topo": ("glake.transfer.topology.cli", "Show how GPUs and host memory are joined."),
    "bench": ("glake.transfer.bench.cli", "Measure glake beside its alternatives, without a GPU."),
    "relayd": ("glake.transfer.relay.cli", "Lend GPUs and links to several processes' copies."),
}


class _Group(Group):
    """Subcommands of this file, and those of other modules by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LAZY:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(_LAZY[cmd_name][0])
        command = getattr(module, cmd_name.replace("-", "_"))
        return command if isinstance(command, click.Command) else None

    def help_rows(self, ctx: click.Context) -> list[tuple[str, str]]:
        return [*super().help_rows(ctx), *((name, text) for name, (_, text) in _LAZY.items())]

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if not of_output(error):
                raise
            click.echo(f"Error: cannot write the output: {error.strerror}", err=True)
            # At exit Python writes what is left in the buffer. That would fail and be told again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GlakeError as error:
            raise click.ClickException(str(error)) from error


def _of_the_table(name: str, metavar: str) -> Callable[[FunctionT], FunctionT]:
    """Makes a flag from an option of config.py, with the table's words as its help."""
    option = config.lookup(name)
    takes = "" if metavar == "PATH" else f" Takes {option.takes}."
    text = f"{option.meaning[0].upper()}{option.meaning[1:]}.{takes}"
    return click.option(f"--{name.replace('_', '-')}", metavar=metavar, help=text)


def _show_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    click.echo(f"glake, version {glake.__version__}")
    context.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """GPU memory that does not fragment."""


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--allocator",
    help="1, basic (the C plug-in) or 0 (off). Default: 1; with --intercept GLAKE_ALLOCATOR or 0.",
)
@_of_the_table("driver", "DRIVER")
@_of_the_table("policy", "POLICY")
@_of_the_table("limit", "BYTES")
@_of_the_table("debug", "MODES")
@_of_the_table("trace", "PATH")
@click.option(
    "--intercept",
    is_flag=True,
    help="Carry large copies between host and GPU over every path; SCRIPT may be any program.",
)
@click.option(
    "--intercept-report", is_flag=True, help="As --intercept, and print at exit what was carried."
)
@_of_the_table("intercept_json", "PATH")
@_of_the_table("intercept_min", "BYTES")
@click.option(
    "--allow-fallback",
    is_flag=True,
    help="Without a driver or device: warn, and run with PyTorch's own allocator.",
)
@click.option("-m", "as_module", is_flag=True, help="Run a module, as python -m does.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    allocator: str | None,
    driver: str | None,
    policy: str | None,
    limit: str | None,
    debug: str | None,
    trace: str | None,
    intercept: bool,
    intercept_report: bool,
    intercept_json: str | None,
    intercept_min: str | None,
    allow_fallback: bool,
    as_module: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT with PyTorch's memory in glake; ARGS are the script's own.

    Fails before SCRIPT starts if glake has no driver or device to serve it with. With --intercept,
    SCRIPT is a Python script or any executable, and glake makes its large copies
    (docs/intercept.md).
    """
    intercept = intercept or intercept_report or intercept_json is not None
    if intercept_min is not None and not intercept:
        raise click.UsageError("--intercept-min needs --intercept: give both")
    if allocator is None and not intercept:
        allocator = "1"
    if intercept_json:
        intercept_json = str(Path(intercept_json).absolute())
    given = {
        "allocator": allocator,
        "intercept": ("report" if intercept_report else "1") if intercept else None,
        "intercept_json": intercept_json,
        "intercept_min": intercept_min,
        "driver": driver,
        "policy": policy,
        "limit": limit,
        "debug": debug,
        "trace": trace,
        "strict": "0" if allow_fallback else "1",
    }
    _refuse_empty(given)
    environment = {**os.environ, **config.variables(given)}
    settings = config.read(environment)
    command = _command(script, args, as_module, intercept)
    for what, path in (("a trace", trace), ("a report", intercept_json)):
        if path is not None and not os.access(Path(path).absolute().parent, os.W_OK):
            raise click.ClickException(
                f"cannot write {what} to {path}: no such directory to write in"
            )
    missing = no_device(environment) if settings.allocator != "0" or intercept else None
    if missing is not None and allow_fallback:
        # This is checked here, because a script that never imports torch never starts glake, which
        # would raise the error.
        click.echo(f"glake: {script} runs without glake: {missing}", err=True)
    elif missing is not None:
        raise click.ClickException(
            f"{script} was not run: {missing}; give --driver sim for the simulated driver, or "
            "--allow-fallback to run without glake"
        )
    if intercept and missing is None:
        from glake.intercept import environment as intercepted

        environment = intercepted(environment)
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def _refuse_empty(given: dict[str, str | None]) -> None:
    for name, value in given.items():
        if value == "":  # an empty variable counts as not set, but an empty option is a mistake
            option = f"--{name.replace('_', '-')}"
            takes = config.lookup(name).takes
            raise click.UsageError(f"{option} is empty: it takes {takes}; or leave it out")


def _command(script: str, args: tuple[str, ...], as_module: bool, intercept: bool) -> list[str]:
    if intercept:
        from glake.intercept import command

        return command(script, args, as_module)
    if not as_module and not Path(script).is_file():
        raise click.ClickException(f"no such script: {script} (a module is run with -m)")
    return [sys.executable, *(["-m"] if as_module else []), script, *args]


@main.command()
@click.option("--library", is_flag=True, help="Print the path of libglake.so, nothing else.")
@click.option("--include", is_flag=True, help="Print the folder of glake/glake.h, nothing else.")
@click.option("--options", is_flag=True, help="List the options, what they take and mean.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--check", is_flag=True, help="Fail unless the driver opens and has a device.")
def info(library: bool, include: bool, options: bool, as_json: bool, check: bool) -> None:
    """Show version, driver, devices and options in force."""
    if library + include + options + (as_json or check) > 1:
        raise click.UsageError(
            "--library, --include, --options, and --json or --check, print different things: give "
            "one"
        )
    if library or include:
        click.echo(library_path() if library else include_path())
        return
    if options:
        click.echo("\n\n".join(map(_explained, config.OPTIONS.values())))
        return
    facts = describe()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        rows = {name.replace("_", " "): value for name, value in facts.items() if name != "options"}
        # The row names the process, because the owed bytes of other jobs are not counted.
        rows["owed bytes, this process"] = rows.pop("owed bytes")
        for name, value in {**rows, **facts["options"]}.items():
            click.echo(f"{name:26}{_shown(value)}")
    if check and not facts["devices"]:
        reason = facts["driver_error"] or "the driver has no device"
        raise click.ClickException(f"no GPU: {reason}")


def _explained(option: config.Option) -> str:
    """An option in three lines. A table's cells would break at a narrow width, so that names and
    values could not be copied or searched."""
    name = f"{config.PREFIX}{option.name}={option.default}"
    return f"{name}\n    takes {option.takes}\n    {option.meaning}"


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


if __name__ == "__main__":
    main()
