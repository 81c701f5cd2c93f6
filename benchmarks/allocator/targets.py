"""What glake promises on a trace, beside PyTorch's policies: one table for each trace.

    python benchmarks/allocator/targets.py [TRACE ...] [--json] [--out DIR]

Without traces it takes the project's own in tests/traces. Every figure comes from the engine of
`glake replay`: the real core runs on the simulated driver in phantom mode, and PyTorch's policies
are our models (docs/trace-format.md). Driver time comes from two tables of prices, `published` and
`a100-kvcached`, which no hardware has confirmed. No figure is a time measured here, so two runs
give the same, and there are no rounds.

Driver time is at 5 % headroom, and that of a step is a mean over the second half of the steps. A
job pays *growth* once: it creates handles above the highest physical total so far, and maps them
the first time. All other driver time *recurs*, also that of calls about events and streams.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from common import TRACES, command, given_traces
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from glake import units
from glake.trace.replay import COST_TABLES, NEVER, ReplayResult, replay

DELAYS = {"0": 0, "512": 512, "never": NEVER}
TIGHT, ROOMY = 1.01, 1.05
FIRST_STEADY_STEP = 3  # the 4th


def _fits(result: ReplayResult) -> str:
    return "fits" if result.oom is None else f"out of memory at event {result.oom.event}"


def _worst(result: ReplayResult, what: str) -> float:
    steady = result.steps[FIRST_STEADY_STEP:]
    return max((getattr(step, what) for step in steady), default=0)


def _beside(ours: float | None, peer: float | None) -> str:
    """The end of a phrase that compares glake's time. Empty if there is nothing to compare."""
    if not ours or not peer:
        return ""
    return f", {ours / peer:.2f} x expandable's"


def measure(path: Path, trace: Any, progress: Progress) -> tuple[Table, dict[str, object]]:
    """Replays one trace in every way that the targets need; returns the table and its plain
    data."""
    live: int = trace.peak_live_bytes
    task = progress.add_task(path.name, total=len(DELAYS) * 3 + 9)

    def run(policy: str, times: float | None, delay: int, **more: bool) -> ReplayResult:
        capacity = None if times is None else int(live * times)
        result = replay(
            trace, policy, capacity=capacity, complete_after=delay, costs=COST_TABLES, **more
        )
        progress.advance(task)
        return result

    table = Table(title=f"{path.name}: peak live {live / 2**30:.2f} GiB", title_justify="left")
    for heading in ("what", "policy", "work completes", "prices", "figure", "growth", "recurs"):
        table.add_column(heading)
    data: dict[str, object] = {"trace": path.name, "peak_live_bytes": live}

    def row(key: str, what: str, policy: str, delay: str, figure: str, value: object) -> None:
        table.add_row(what, policy, delay, "", figure)
        data[f"{key}/{policy}/{delay}"] = value

    def driver_time(
        policy: str, delay: str, result: ReplayResult, peer: ReplayResult | None = None
    ) -> None:
        for costs, time in result.by_costs.items():
            theirs = peer.by_costs[costs].driver_us_per_step if peer else None
            beside = _beside(time.driver_us_per_step, theirs)
            for key, what, us, grown, more in (
                ("", "a step", time.driver_us_per_step, time.growth_us_per_step or 0.0, beside),
                ("all_", "in all, set-up too", time.driver_us, time.growth_us, ""),
            ):
                parts = [f"{each / 1e3:,.2f} ms" for each in (us or 0, grown, (us or 0) - grown)]
                parts[0] += more
                table.add_row(f"driver time {what}", policy, delay, costs, *parts)
                by = "" if costs == result.costs else f"/{costs}"
                data[f"{key}us/{policy}/{delay}{by}"] = us
                data[f"{key}growth_us/{policy}/{delay}{by}"] = grown

    for policy in ("glake", "expandable", "native"):
        least = run(policy, None, 512, find_min_capacity=True).min_capacity_bytes
        times = least / live if least is not None else None
        row("least", "smallest capacity", policy, "512", f"{times or 0:.4f}x live", times)
    for policy in ("glake", "compact", "expandable", "native"):
        roomy = run(policy, None, 512)
        mean, held = roomy.time_avg_utilisation, roomy.peak_physical_bytes / live
        row("mean", "live of held, mean over events", policy, "512", f"{mean:.4f}", mean)
        if policy != "compact":  # compact has rows below, for every delay
            row("held", "held, unlimited memory", policy, "512", f"{held:.4f}x live", held)
    for name, delay in DELAYS.items():
        tight = run("glake", TIGHT, delay)
        row("tight", f"capacity {TIGHT}x live", "glake", name, _fits(tight), tight.oom is None)
        compact = run("compact", None, delay)
        held = compact.peak_physical_bytes / live
        row("held", "held, unlimited memory", "compact", name, f"{held:.4f}x live", held)
    native = run("native", ROOMY, 0)
    row("roomy", f"capacity {ROOMY}x live", "native", "0", _fits(native), native.oom is None)
    peer = run("expandable", ROOMY, 512)
    driver_time("expandable", "512", peer)
    for name, delay in DELAYS.items():
        roomy = run("glake", ROOMY, delay)
        driver_time("glake", name, roomy, peer)
        calls = _worst(roomy, "driver_calls")
        row("calls", "driver calls, worst step from the 4th", "glake", name, f"{calls:,.0f}", calls)
        waits = roomy.stream_waits_per_step
        row("waits", "stream waits a step", "glake", name, f"{waits or 0:.1f}", waits)
    return table, data


def overview(measured: list[dict[str, Any]]) -> list[Table]:
    """A line for each trace: glake beside models of PyTorch's policies. Work completes 512 late."""
    peers = ("glake", "expandable", "native")
    memory = Table(title="capacity needed and held with unlimited memory, x of peak live")
    for heading in ("trace", "peak live", *(f"needed: {each}" for each in peers)):
        memory.add_column(heading, justify="right", overflow="fold")
    for each in ("compact", *peers):
        memory.add_column(f"held: {each}", justify="right")
    time = Table(title="live of held, mean over events; driver time a step at 5 % headroom")
    for heading in ("trace", "mean: glake", "expandable"):
        time.add_column(heading, justify="right", overflow="fold")
    for costs in COST_TABLES:
        for heading in (f"{costs}: glake", "of it recurs", "expandable"):
            time.add_column(heading, justify="right")
    for data in measured:
        name = str(data["trace"]).removesuffix(".trace.gz")
        needed = (data[f"least/{each}/512"] for each in peers)
        memory.add_row(
            name,
            units.size(data["peak_live_bytes"]),
            *(f"{each:.4f}x" if each else "-" for each in needed),
            *(f"{data[f'held/{each}/512']:.4f}x" for each in ("compact", *peers)),
        )
        cells: list[float | None] = []
        for by in ("", f"/{COST_TABLES[1]}"):
            ours, theirs = (data[f"us/{each}/512{by}"] for each in ("glake", "expandable"))
            recurs = None if ours is None else ours - data[f"growth_us/glake/512{by}"]
            cells += [ours, recurs, theirs]
        time.add_row(
            name,
            *(f"{data[f'mean/{each}/512']:.3f}" for each in ("glake", "expandable")),
            *("-" if each is None else f"{each / 1e3:.2f} ms" for each in cells),
        )
    for table in (memory, time):
        table.title_justify = "left"
    return [memory, time]


def work(traces: tuple[Path, ...], as_json: bool, out: Path | None) -> None:
    given = given_traces(traces)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        measured = [measure(path, trace, progress) for path, trace in given]
    text = json.dumps([data for _, data in measured], indent=1)
    if out is not None:
        (out / "targets.json").write_text(text + "\n")
    if as_json:
        click.echo(text)
        return
    for table, _ in measured:
        Console(width=124).print(table)
    if len(measured) > 1:
        for table in overview([data for _, data in measured]):
            Console(width=140).print(table)


TITLE = "Replay TRACES as the promises in the README ask and print what came out."
main = command(work, TITLE, TRACES, files="targets.json")

if __name__ == "__main__":
    main()
