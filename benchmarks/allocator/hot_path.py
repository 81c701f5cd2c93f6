"""The allocation hot path through the C interface, as a table.

    python benchmarks/allocator/hot_path.py [--seconds S] [--json]

Runs the compiled hot_path program (tools/native.py builds it) on the simulated driver. A hit maps
nothing; the rows say what was asked of it and the limit the project set itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]


def measure(seconds: float) -> dict[str, Any]:
    """Builds and runs the program; its JSON object. CalledProcessError if either fails."""
    command = [sys.executable, str(ROOT / "tools" / "native.py"), "--group", "benchmarks"]
    command += ["--program", "hot_path", "--run", "--", "--seconds", str(seconds)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    data: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])  # what was built comes before
    return data


def tables(data: dict[str, Any]) -> list[Table]:
    """What the JSON says, for people."""
    single = Table(title="One thread, hits, nanoseconds a call", title_justify="left")
    for heading in ("sizes", "alloc p50", "alloc p99", "free p50", "free p99"):
        single.add_column(heading, justify="left" if heading == "sizes" else "right")
    for row in data["single"]:
        alloc, free = row["alloc_ns"], row["free_ns"]
        cells = (alloc["p50"], alloc["p99"], free["p50"], free["p99"])
        single.add_row(row["mix"], *(str(cell) for cell in cells))
    single.add_row("[dim]limit", "[dim]100", "[dim]1000", "[dim]60", "[dim]1000")
    two = Table(title="Two threads, one device, free + alloc pairs a second", title_justify="left")
    for heading in ("sizes", "one thread", "two threads", "ratio"):
        two.add_column(heading, justify="left" if heading == "sizes" else "right")
    for row in data["threads"]:
        rates = (f"{row['one_thread_per_s']:,.0f}", f"{row['two_threads_per_s']:,.0f}")
        two.add_row(row["mix"], *rates, f"{row['ratio']:.2f}")
    two.add_row("[dim]limit", "", "", "[dim]1.60")
    stall = Table(
        title="Hits while another thread's every cuMemMap takes 10 ms, nanoseconds",
        title_justify="left",
    )
    for heading in ("sizes", "alloc p99", "free p99"):
        stall.add_column(heading, justify="left" if heading == "sizes" else "right")
    for row in data["stalled"]:
        stall.add_row(row["mix"], str(row["alloc_ns"]["p99"]), str(row["free_ns"]["p99"]))
    stall.add_row("[dim]limit", "[dim]10000", "[dim]10000")
    return [single, two, stall]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=1.0, show_default=True, help="Time for each measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def main(seconds: float, as_json: bool) -> None:
    """Measures glake's hot path on the simulated driver."""
    data = measure(seconds)
    if as_json:
        click.echo(json.dumps(data, indent=1))
        return
    for table in tables(data):
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
