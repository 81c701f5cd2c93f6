"""Real time that the engine takes before a copy's first driver copy, beside the plain copy.

    python benchmarks/transfer/start_time.py [--platform NAME]... [--only TEXT] [--rounds N]
        [--json] [--out DIR]

The simulated clock does not count this time. How to read it: docs/benchmarks.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "allocator"))

from common import Metric, Pattern, Row, Runner, front  # noqa: E402

PLATFORMS = ("hgx_h100_h200", "dgx_a100", "dgx1v", "a10_l40s_x8")
PATTERN = Pattern(
    program="start_time",
    title="Real time from a copy's call to the first driver copy",
    metrics=(
        Metric("first_us", "first us", "", 1),
        Metric("again_us", "again us", "", 1),
        Metric("new_us", "new size us", "", 1),
        Metric("new_worst_us", "new size, worst us", "", 1),
        Metric("call_us", "again: call returns, us", "", 1),
    ),
    note="first: of an engine that has just been opened. again: each copy is waited for before "
    "the next. new size: copies of sizes that were not seen before, which come after those. "
    "all h2d: one into each GPU, begun by one thread; the mean of its copies. Contains "
    "the simulated driver's own time.",
    subjects={
        "glake": "the transfer engine, copies in a stream's order",
        "plain": "the same call with GLAKE_COPY_DIRECT: one driver copy",
    },
)


def measure(run: Runner, platform: tuple[str, ...], only: str | None) -> list[Row]:
    """The program's rows, from a process for each platform."""
    cases = ["--only", only] if only else []
    return [row for name in platform or PLATFORMS for row in run(["--platform", name, *cases])]


OPTIONS = (
    click.Option(["--platform"], multiple=True, help="; ".join(PLATFORMS)),
    click.Option(["--only"], help='The cases whose name contains this ("all h2d").'),
)
main = front(PATTERN, *OPTIONS, prepare=measure)

if __name__ == "__main__":
    main()
