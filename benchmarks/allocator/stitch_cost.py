"""What a large block costs where the free bytes are in pieces of 2 MiB, by its size.

    python benchmarks/allocator/stitch_cost.py [--most MIB] [--rounds N] [--json] [--out DIR]

glake and GMLake stitch; the others run out of memory. Beside them is the same request on an empty
device. Driver time is modelled. How to read it: docs/benchmarks.md.
"""

import click
from common import Metric, Pattern, front

PATTERN = Pattern(
    program="stitch_cost",
    title="A block out of pieces of 2 MiB, none adjacent: driver calls and their modelled time",
    metrics=(
        Metric("fits", "fits"),
        Metric("driver_calls", "driver calls", "less"),
        Metric("driver_us", "driver us: published", "less"),
        Metric("driver_us_a100", "a100-kvcached", "less"),
        Metric("driver_us_per_gib", "published / GiB"),
        Metric("host_us", "host us"),
        Metric("again_calls", "again: calls"),
        Metric("again_host_us", "again: host us", "", 1),
    ),
    note="Host time of glake contains the simulated driver's own; the models have no driver. "
    "native, new memory: one cudaMalloc. "
    "gmlake stitches from 2 MiB on here; its own default is 512 MiB.",
)
MOST = click.Option(["--most"], type=click.IntRange(64, 16384), help="Largest block, MiB.")
main = front(PATTERN, MOST)

if __name__ == "__main__":
    main()
