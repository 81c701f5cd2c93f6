"""Blocks of all sizes and lifetimes. Threads free blocks that other threads took.

    python benchmarks/allocator/mixed_sizes.py [--threads T] [--most MIB] [--seconds S]
                                               [--rounds N] [--json] [--out DIR]

Two patterns known from host allocators at a GPU's sizes (512 B to 256 MiB, log-uniform): threads
that hand their blocks on (as larson) and bursts with blocks that outlive them (as mimalloc's
mstress). How to read it: docs/benchmarks.md.
"""

import click
from common import Metric, Pattern, front

PATTERN = Pattern(
    program="mixed_sizes",
    title="Mixed sizes, several threads: pairs of allocation and free a second",
    metrics=(
        Metric("pairs_per_s", "pairs /s", "more"),
        Metric("held_per_live", "held / peak live", "less", 3),
        Metric("driver_us_per_1k", "driver us / 1000 pairs: published", "", 1),
        Metric("driver_us_per_1k_a100", "a100-kvcached", "", 1),
    ),
    note="Driver time is modelled; the rate of glake contains the simulated driver's own time.",
    seconds=1.0,
)
THREADS = click.Option(["--threads"], type=click.IntRange(1, 64), help="T; default: the cores.")
MOST = click.Option(["--most"], type=click.IntRange(1, 1024), default=256, show_default=True,
                    help="Largest block, MiB.")  # fmt: skip

main = front(PATTERN, THREADS, MOST)

if __name__ == "__main__":
    main()
