"""Shared by the allocator benchmarks: building and running their programs, tables, pictures.

A script names its program and its figures (a `Pattern`) and calls `front()`, which gives it the
options --rounds, --json and --out, and --seconds where it runs against the clock. A program
measures all subjects in turn, over several rounds, in one process (measure.h). Every figure is the
median over the rounds, and a ratio is the median of the rounds' own ratios. So what slows the
machine slows all subjects alike.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
OURS = "glake"

# A description of each subject, for the line under a table.
SUBJECTS = {
    "glake": "the real core through its C interface, on the simulated driver",
    "compact": "the same under the policy that stitches before it grows",
    "native": "our model of PyTorch's default allocator (csrc/replay), behind one lock for each "
    "device as PyTorch's is; it keeps no table of pointers, statistics or history, so PyTorch "
    "itself takes longer",
    "expandable": "the same with expandable_segments:True",
    "gmlake": "our model of GMLake, behind the same lock",
    "glibc": "malloc of sizes 512 times smaller: no GPU memory, a yardstick for book-keeping",
}


class BenchmarkError(RuntimeError):
    """A program failed, or printed what no benchmark prints. The text says which."""


class BadTrace(click.ClickException):
    """A trace cannot be measured. The text names the file, and the line if one line is wrong."""

    exit_code = 2


@dataclass(frozen=True)
class Metric:
    """A figure of the programs' rows. `better`: "less" or "more" gives a column of ratios."""

    key: str
    heading: str
    better: str = ""
    digits: int = 0

    def text(self, value: float | None) -> str:
        return "-" if value is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class Pattern:
    """One benchmark: its program (a source file beside this one), its figures and its texts."""

    program: str
    title: str
    metrics: tuple[Metric, ...]
    note: str = ""
    seconds: float | None = None  # the program's default; None if it takes no --seconds
    subjects: dict[str, str] = field(default_factory=lambda: SUBJECTS)


Row = dict[str, Any]


def run_program(name: str, arguments: Sequence[str]) -> list[Row]:
    """Builds and runs a program; returns its rows. BenchmarkError if either fails."""
    if not (ROOT / "build" / "benchmarks" / "lib" / name).exists():
        click.echo(f"compiling {name} (a minute or two, the first time)", err=True)
    command = [sys.executable, str(ROOT / "tools" / "native.py"), "--group", "benchmarks"]
    command += ["--program", name, "--run", "--", *arguments]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if ran.returncode != 0:
        raise BenchmarkError(f"{name} ended with status {ran.returncode}\n{ran.stdout}")
    return read_rows(ran.stdout)


@dataclass(frozen=True)
class Runner:
    """A pattern's program, and how often it measures each subject."""

    program: str
    rounds: int

    def __call__(self, arguments: Sequence[str]) -> list[Row]:
        return run_program(self.program, ["--rounds", str(self.rounds), *arguments])


def read_rows(text: str) -> list[Row]:
    """The rows among a program's lines. BenchmarkError if there is none, or one lacks a key."""
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"pattern"')]
    for row in rows:
        if missing := {"pattern", "case", "subject", "rounds"} - row.keys():
            raise BenchmarkError(f"a row without {', '.join(sorted(missing))}: {row}")
    if not rows:
        raise BenchmarkError("the program printed no row")
    return rows


def middle(values: Sequence[float | None]) -> float | None:
    """The median of the known values."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(metric: Metric, ours: Sequence[Any], theirs: Sequence[Any]) -> dict[str, float] | None:
    """How many times better glake's figure is: median, least and most. None if it is unknown."""
    found = []
    for mine, its in zip(ours, theirs, strict=False):
        over, under = (its, mine) if metric.better == "less" else (mine, its)
        if over is not None and under:
            found.append(over / under)
    if not found:
        return None
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def summarise(pattern: Pattern, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A line for each row: its medians, and its ratios to glake's row of the same case."""
    ours = {row["case"]: row["rounds"] for row in rows if row["subject"] == OURS}
    lines = []
    for row in rows:
        rounds, mine = row["rounds"], ours.get(row["case"], {})
        figures = {metric.key: middle(rounds.get(metric.key, [])) for metric in pattern.metrics}
        ratios = {
            metric.key: ratio(metric, mine.get(metric.key, []), rounds.get(metric.key, []))
            for metric in pattern.metrics
            if metric.better and row["subject"] != OURS
        }
        lines.append({**{key: row[key] for key in ("case", "subject")},
                      "figures": figures, "glake_is_better_by": ratios})  # fmt: skip
    cases = list(ours)
    return sorted(lines, key=lambda line: cases.index(line["case"]))


def tables(pattern: Pattern, lines: Sequence[dict[str, Any]]) -> list[Table]:
    """A table for each case. Beside a figure is how many times better glake's is (red: worse)."""
    made: list[Table] = []
    widest = max(len(line["subject"]) for line in lines)
    for case in dict.fromkeys(line["case"] for line in lines):
        grid = Table(title=case, title_justify="left", title_style="bold", pad_edge=False)
        grid.add_column("subject", min_width=widest, no_wrap=True)
        here = [line for line in lines if line["case"] == case]
        shown = [metric for metric in pattern.metrics
                 if any(line["figures"][metric.key] is not None for line in here)]  # fmt: skip
        for metric in shown:
            grid.add_column(metric.heading, justify="right", min_width=6)
            if metric.better:
                grid.add_column("x", justify="right", style="dim", min_width=4, no_wrap=True)
        for line in here:
            cells = [line["subject"]]
            for metric in shown:
                cells.append(metric.text(line["figures"][metric.key]))
                if metric.better:
                    cells.append(_times(line["glake_is_better_by"].get(metric.key)))
            grid.add_row(*cells, style="green" if line["subject"] == OURS else "")
        made.append(grid)
    return made


def _times(found: dict[str, float] | None) -> str:
    if found is None:
        return ""
    text = f"{found['median']:.2f}"
    return f"[red]{text}[/red]" if found["median"] < 0.95 else text


def legend(pattern: Pattern, lines: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each subject of these lines."""
    named = dict.fromkeys(line["subject"].split(",")[0] for line in lines)
    return [f"{name}: {pattern.subjects[name]}." for name in named if name in pattern.subjects]


def machine() -> dict[str, Any]:
    """The machine that made the figures. The load average shows how busy it was."""
    cpu = platform.processor() or platform.machine()
    try:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"date": now, "cpu": cpu, "cores": os.cpu_count(), "load": os.getloadavg()[0]}


def save(pattern: Pattern, data: dict[str, Any], out: Path) -> None:
    """Writes <program>.json and <program>.png into the directory `out`. OSError if it cannot."""
    (out / f"{pattern.program}.json").write_text(json.dumps(data, indent=1) + "\n")
    draw(pattern, data["summary"], out / f"{pattern.program}.png")


def draw(pattern: Pattern, lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars of every figure that has a direction: a panel for each, a group for each case."""
    from glake import drawing

    drawing.load()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shown = [metric for metric in pattern.metrics if metric.better] or list(pattern.metrics[:1])
    cases = list(dict.fromkeys(line["case"] for line in lines))
    subjects = list(dict.fromkeys(line["subject"] for line in lines))
    height = max(2.5, 0.17 * len(lines) + 0.6)
    figure = Figure(figsize=(4.2 * len(shown) + 1, height + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(pattern.title, x=0.01, ha="left", fontweight="bold")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    bar = 0.84 / len(subjects)
    colours = {each: f"C{index}" for index, each in enumerate(subjects)} | {OURS: "#1b7f5c"}
    for metric, axes in zip(shown, panels, strict=True):
        for index, subject in enumerate(subjects):
            mine = [each for each in lines if each["subject"] == subject]
            known = [each for each in mine if each["figures"][metric.key] is not None]
            places = [cases.index(each["case"]) + bar * (index + 0.5) - 0.42 for each in known]
            values = [each["figures"][metric.key] for each in known]
            axes.barh(places, values, bar, color=colours[subject])
        positive = [each["figures"][metric.key] for each in lines if each["figures"][metric.key]]
        if positive and max(positive) > 30 * min(positive):
            axes.set_xscale("log")
        axes.set_title(f"{metric.heading} ({metric.better} is better)", fontsize=10, loc="left")
        axes.set_yticks(range(len(cases)), cases)
        axes.grid(axis="x", color="0.9")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    some = {each["subject"] for each in lines
            if any(each["figures"][metric.key] is not None for metric in shown)}  # fmt: skip
    patches = [Patch(color=colours[each], label=each if each in some else f"{each}: no figure")
               for each in subjects]  # fmt: skip
    figure.legend(handles=patches, loc="outside lower left", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)


def present(pattern: Pattern, rows: Sequence[Row], as_json: bool, out: Path | None) -> None:
    """Prints rows as a table, or as JSON, and writes them to `out` if that is given."""
    lines = summarise(pattern, rows)
    data = {"pattern": pattern.program, "title": pattern.title, "machine": machine(),
            "summary": lines, "rows": list(rows)}  # fmt: skip
    if out is not None:
        save(pattern, data, out)
    if as_json:
        click.echo(json.dumps(data, indent=1))
        return
    console = Console(width=int(os.environ.get("COLUMNS", 118)))
    console.print(f"[bold]{pattern.title}[/bold]")
    for grid in tables(pattern, lines):
        console.print(grid)
    notes = ["Medians over the rounds. x: how many times better glake is, in the same round."]
    for text in [*notes, *([pattern.note] if pattern.note else []), *legend(pattern, lines)]:
        console.print(f"[dim]{text}[/dim]", highlight=False)


TRACES = click.Argument(
    ["traces"], nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


def given_traces(traces: Sequence[Path]) -> list[tuple[Path, Any]]:
    """(path, parsed trace) of the given traces, or else of the project's own. BadTrace if one
    breaks the format's rules (docs/trace-format.md), or its live bytes suit no device."""
    from glake.trace.replay import load_trace

    found = []
    for path in traces or sorted((ROOT / "tests" / "traces").glob("*.trace.gz")):
        try:
            trace = load_trace(path)
        except (ValueError, OSError) as error:
            raise BadTrace(str(error)) from None
        live: int = trace.peak_live_bytes
        if not 2 << 20 <= live <= 1 << 42:
            raise BadTrace(
                f"{path}: {live:,} bytes live at the peak: give a trace with 2 MiB to 4 TiB"
            )
        found.append((path, trace))
    return found


def output_options(files: str) -> list[click.Parameter]:
    """--json and --out, for the directory of `files`."""
    return [
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of a table."),
        click.Option(["--out"], type=click.Path(file_okay=False, path_type=Path),
                     help=f"Directory for {files}."),
    ]  # fmt: skip


def command(
    work: Callable[..., None], title: str, *params: click.Parameter, files: str
) -> click.Command:
    """The command of a benchmark. `work` gets `params`, --json and --out by name.

    The directory of --out is made before the work. A BenchmarkError or OSError ends the command
    with one line.
    """

    def main(**given: Any) -> None:
        try:
            if given["out"] is not None:
                given["out"].mkdir(parents=True, exist_ok=True)
            work(**given)
        except (BenchmarkError, OSError) as error:
            raise click.ClickException(str(error)) from None

    names = {"help_option_names": ["-h", "--help"]}
    return click.Command("main", context_settings=names, callback=main,
                         params=[*params, *output_options(files)], help=title)  # fmt: skip


def front(
    pattern: Pattern,
    *options: click.Parameter,
    prepare: Callable[..., list[Row]] | None = None,
) -> click.Command:
    """The command of a script. Its own `options` go by name to the program, or to
    `prepare(run, **options)`, which calls run(arguments) for the rows and may read run.rounds."""

    def work(rounds: int, as_json: bool, out: Path | None, **own: Any) -> None:
        def plain(run: Runner, **own: Any) -> list[Row]:
            given = [(name, value) for name, value in own.items() if value is not None]
            return run([word for name, value in given for word in (f"--{name}", str(value))])

        present(pattern, (prepare or plain)(Runner(pattern.program, rounds), **own), as_json, out)

    params: list[click.Parameter] = [
        click.Option(["--rounds"], type=click.IntRange(1), default=5, show_default=True,
                     help="Times that every subject is measured, in turn."),
    ]  # fmt: skip
    if pattern.seconds is not None:
        seconds = click.FloatRange(0, min_open=True)
        params.append(click.Option(["--seconds"], type=seconds, default=pattern.seconds,
                                   show_default=True,
                                   help="For each subject and case, all rounds."))  # fmt: skip
    return command(work, pattern.title, *params, *options, files="a JSON file and a PNG")
