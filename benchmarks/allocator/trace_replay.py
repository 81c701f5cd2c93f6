"""What recorded jobs cost on the host, call by call, and their driver time.

    python benchmarks/allocator/trace_replay.py [TRACE ...] [--capacity X] [--rounds N]
                                                [--json] [--out DIR]

Without traces it takes the project's own in tests/traces. Each is replayed on a device of 80 GiB
and on one of X times its peak live bytes. Host times are of the calls that mapped and unmapped
nothing. How to read it: docs/benchmarks.md. targets.py shows what glake promises on a trace.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
from common import TRACES, Metric, Pattern, Row, Runner, front, given_traces

from glake.trace.format import read_chunks

PATTERN = Pattern(
    program="trace_replay",
    title="Trace replay: host nanoseconds a call, modelled driver time a step",
    metrics=(
        Metric("alloc_p50_ns", "alloc p50", "less"),
        Metric("alloc_p99_ns", "p99", "less"),
        Metric("alloc_mean_ns", "mean*", "less"),
        Metric("free_p50_ns", "free p50", "less"),
        Metric("free_p99_ns", "p99", "less"),
        Metric("free_mean_ns", "mean*", "less"),
        Metric("driver_ms_per_step", "driver ms: published", "", 1),
        Metric("driver_ms_per_step_a100", "a100-kvcached", "", 1),
        Metric("events_done", "done", "", 2),
    ),
    note="Driver time is modelled, that of set-up included, a step. done below 1: out of memory. "
    "*: of the fastest 99 %.",
)


def measure(run: Runner, traces: tuple[Path, ...], capacity: float) -> list[Row]:
    """Gives the program plain text, in files with the rows' names. BadTrace as given_traces."""
    with tempfile.TemporaryDirectory() as scratch:
        plain: list[Path] = []
        for path, _ in given_traces(traces):
            name = path.name.removesuffix(".gz").removesuffix(".trace").replace(",", "_")
            same = sum(each.name.partition(" (")[0] == name for each in plain)
            plain.append(Path(scratch, f"{name} ({same + 1})" if same else name))
            with plain[-1].open("wb") as file:
                file.writelines(read_chunks(path))
        return run(["--trace", ",".join(map(str, plain)), "--capacity", str(capacity)])


CAPACITY = click.Option(["--capacity"], type=click.FloatRange(1), default=1.05, show_default=True,
                        help="The smaller device, in peak live bytes.")  # fmt: skip
main = front(PATTERN, TRACES, CAPACITY, prepare=measure)

if __name__ == "__main__":
    main()
