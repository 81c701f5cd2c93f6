"""`glake plan`: will the job fit, under which allocator, and what holds the memory?"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from glake.ending import ended_tidily
from glake.errors import GlakeError, PlanError
from glake.trace import planner
from glake.trace.fake_cuda import recording_torch
from glake.trace.job import ATTENTION, SCRATCH
from glake.trace.plans import OPTIONS, describe
from glake.trace.plans import check as check_plan
from glake.trace.replay import policies
from glake.units import printable, share, size

_WIDTH = 110
_HOLDERS = 8


class Refused(click.ClickException):
    """A job that cannot be planned."""

    exit_code = 2


def _ready_plan_options(command: click.Command) -> click.Command:
    """Makes each option of the ready plans a flag of its own: --seq 8192 and the like."""
    for option in OPTIONS:
        # An option whose value may be left out needs a flag_value. Then no value may begin with
        # "-".
        bare: dict[str, Any] = {}
        if option.bare is not None:
            bare = {"is_flag": False, "flag_value": option.bare}
        command.params.append(
            click.Option(
                [f"--{option.name}", _parameter(option.name)],
                metavar=option.name.upper(),
                help=f"Ready plan: {option.meaning}.",
                hidden=True,
                **bare,
            )
        )
    return command


@click.command()
@click.argument("target")
@click.option("--gpu", default="80GiB", show_default=True, help="Memory of the GPU.")
@click.option("--world", default=1, show_default=True, help="Ranks of the job; one is recorded.")
@click.option("--rank", default=0, show_default=True, help="The rank that is recorded.")
@click.option("--steps", default=4, show_default=True, help="Steps to record.")
@click.option("--seed", default=0, show_default=True, help="Seed of the job's own random choices.")
@click.option(
    "--policy",
    "policy_names",
    default=",".join(planner.DEFAULT_POLICIES),
    show_default=True,
    help="Allocation policies to compare, separated by commas.",
)
@click.option(
    "-o",
    "--option",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the job itself (job.options), or of a ready plan. May be repeated.",
)
@click.option(
    "--context",
    help="Memory to set aside for CUDA. [default: 616MiB, and 1GiB for NCCL if world > 1]",
)
@click.option(
    "--attention",
    type=click.Choice(ATTENTION),
    default="flash",
    show_default=True,
    help="Kernel that scaled_dot_product_attention prefers.",
)
@click.option(
    "--scratch",
    type=click.Choice(SCRATCH),
    default="default",
    show_default=True,
    help="Model of the kernels' own scratch memory (not calibrated on hardware).",
)
@click.option("--out", type=click.Path(dir_okay=False), help="Keep the trace here (.trace.gz).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--html", "html_path", type=click.Path(dir_okay=False), help="Write a report.")
@click.option("--quick", is_flag=True, help="Leave out the smallest capacity of each policy.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, param, value: _list(ctx, value),
    help="List the ready plans and their options.",
)
@click.option("--python", default="", help="Python whose torch (a CPU build) records the job.")
def plan(target: str, **given: Any) -> None:
    """Say whether a training job fits a GPU, without a GPU and without running it.

    TARGET is MODULE:FUNCTION, found from the current directory. The function, make_step(job),
    builds model and optimizer on job.device, and returns the function that does step i
    (docs/plan.md). TARGET may also be a ready plan, such as gpt2, or llama3-8b with --seq 8192, or
    the path of a HuggingFace config.json.

    One rank of the job is recorded, unchanged, on tensors without memory. The recording is replayed
    under allocation policies. A job that does not fit is a result: the exit code stays 0.
    """
    started = time.monotonic()
    with ended_tidily():
        try:
            made = _plan(target, given)
        except (GlakeError, OSError) as error:
            text = str(error) if ":" in target else _as_typed(str(error), given)
            raise Refused(text) from error
        except RuntimeError as broken:  # a policy's books do not add up
            raise click.ClickException(str(broken)) from broken
        if given["as_json"]:
            click.echo(json.dumps(made.to_json(), indent=1))
        else:
            _print(made, time.monotonic() - started, given)


def _as_typed(text: str, given: dict[str, Any]) -> str:
    """Rewords an error about seq=4096 to one about --seq 4096, if the option was given so."""
    for option in OPTIONS:
        value = given.get(_parameter(option.name))
        if value is not None:
            assigned = rf"(?<![\w-]){re.escape(f'{option.name}={value}')}(?!\w)"
            typed = f"--{option.name} {value}".replace("\\", r"\\")
            text = re.sub(assigned, typed, text)
    return text


def _parameter(option: str) -> str:
    return f"plan_{option.replace('-', '_')}"


def _list(ctx: click.Context, asked: bool) -> None:
    if not asked:
        return
    models = Table("ready plan", "parameters", "from")
    for row in describe():
        models.add_row(*map(escape, (row.name, _billions(row.parameters), row.source)))
    options = Table("option", "default", "takes", "meaning")
    for each in OPTIONS:
        shown = (f"--{each.name}", each.default or "-", each.takes, each.meaning)
        options.add_row(*map(escape, shown))
    console = _console()
    console.print(models)
    console.print(options)
    ctx.exit()


def _billions(parameters: int | None) -> str:
    return "-" if parameters is None else f"{parameters / 1e9:.2f} B"


def _console() -> Console:
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = max(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    return console


def _plan(target: str, given: dict[str, Any]) -> planner.MemoryPlan:
    # This check comes first, because with the packages that a plan lacks (peft) pip would install
    # another torch.
    if not given["python"]:
        recording_torch()
    options = _options(target, given)
    html_path = given["html_path"]
    for name in ("out", "html_path"):
        folder = os.path.dirname(os.path.abspath(given[name])) if given[name] else "."
        if not os.path.isdir(folder):
            raise PlanError(f"--{name.partition('_')[0]} {given[name]}: there is no such folder")
    out = given["out"]
    if html_path and out and os.path.realpath(html_path) == os.path.realpath(out):
        raise PlanError(f"--html and --out name the same file: {html_path}")
    if html_path is not None:
        from glake.trace import html

        if not html.available():
            raise PlanError(html.absent("--html"))
    names = [each.strip() for each in given["policy_names"].split(",") if each.strip()]
    if not names:
        raise PlanError(f"--policy: name at least one of {', '.join(policies())}")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = Console(stderr=True)
    with Progress(
        *columns, console=shown, transient=True, disable=not shown.is_terminal
    ) as progress:
        task = progress.add_task("starting torch", total=1.0)
        return planner.plan(
            target,
            gpu=given["gpu"],
            world=given["world"],
            rank=given["rank"],
            steps=given["steps"],
            seed=given["seed"],
            options=options,
            policies=names,
            context=given["context"],
            attention=given["attention"],
            scratch=given["scratch"],
            find_min_capacity=not given["quick"],
            out=given["out"],
            keep=False,
            html=html_path,
            python=given["python"],
            progress=lambda done, doing: progress.update(
                task, completed=done, description=escape(doing)
            ),
        )


def _options(target: str, given: dict[str, Any]) -> dict[str, str]:
    options = {}
    for pair in given["pairs"]:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise PlanError(f"-o {pair}: give KEY=VALUE")
        options[key] = value
    for option in OPTIONS:
        value = given.get(_parameter(option.name))
        if value is not None:
            options[option.name] = value
            if ":" in target:
                raise PlanError(
                    f"--{option.name} is an option of ready plans; give a job of your own its "
                    f"options with -o {option.name}={value}"
                )
    if ":" not in target:
        check_plan(target, options, given["world"])
    return options


def _print(made: planner.MemoryPlan, seconds: float, given: dict[str, Any]) -> None:
    console = _console()
    facts = made.facts
    static = int(facts["setup_live_bytes"])
    console.print(
        escape(
            f"{printable(made.target)}: {facts['steps']} steps, "
            f"rank {facts['rank']} of {facts['world']}, "
            f"{size(int(facts['peak_live_bytes']))} live at the peak, {size(static)} after set-up; "
            f"{size(made.context_bytes)} of the {made.gpu_text} set aside (assumed)"
        )
    )
    console.print(_table(made))
    console.print(f"[bold]{escape(printable(made.verdict))}.[/bold]")
    if not all(made.fits.values()):
        _print_holders(console, made)
    for text in made.advice[:3]:
        console.print(escape(printable(f"- {text}")))
    _print_assumptions(console, made, given)
    console.print(f"({seconds:.0f} s)")


def _table(made: planner.MemoryPlan) -> Table:
    table = Table("policy", "fits")
    times = [f"driver time a step, {costs}" for costs in made.results[0].by_costs]
    for heading in ("physical peak", "smallest capacity", "headroom", *times):
        table.add_column(heading, justify="right")
    for each in made.results:
        least = each.min_capacity_bytes
        spare = made.capacity_bytes - least if least is not None else None
        per_step = [under.driver_us_per_step for under in each.by_costs.values()]
        fits = "yes" if each.oom is None else f"no: {_when(each.oom.step)}"
        table.add_row(
            each.policy,
            fits,
            size(each.peak_physical_bytes),
            "-" if least is None else size(least),
            "-" if spare is None else size(spare),
            *("-" if us is None or each.oom else f"{us / 1000:.1f} ms" for us in per_step),
        )
    return table


def _when(step: int | None) -> str:
    return "out of memory in set-up" if step is None else f"out of memory in step {step}"


def _print_holders(console: Console, made: planner.MemoryPlan) -> None:
    total = sum(held for _, held, _ in made.holders)
    roles = ", ".join(f"{role} {size(held)} ({share(held, total)})" for role, held in made.roles)
    console.print(escape(f"At the peak: {roles}."))
    table = Table("phase; module; operator")
    table.add_column("bytes", justify="right")
    table.add_column("blocks", justify="right")
    for tag, held, blocks in planner.folded(made.holders)[:_HOLDERS]:
        table.add_row(escape(tag.replace(";", "; ")), size(held), f"{blocks:,}")
    console.print(table)


def _print_assumptions(console: Console, made: planner.MemoryPlan, given: dict[str, Any]) -> None:
    texts = [f"{given['attention']} attention where CUDA could take it"]
    scratch = given["scratch"]
    texts.append(f"{scratch} kernel scratch, not calibrated" if scratch != "none" else "no scratch")
    texts += [str(made.facts[key]) for key in ("assumed_seq", "assumptions") if key in made.facts]
    console.print(escape(printable(f"Assumed: {'; '.join(texts)}.")))


plan = _ready_plan_options(plan)
