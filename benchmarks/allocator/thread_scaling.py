"""Several threads on one device: how hits scale, and what they cost while growth waits.

    python benchmarks/allocator/thread_scaling.py [--threads T] [--seconds S] [--rounds N]
                                                  [--json] [--out DIR]

Each thread has a working set of its own (that of hot_path.py). In "growth stalled" one thread makes
hits while another grows by 256 MiB again and again, for at least 10 ms in the driver each time.
How to read it: docs/benchmarks.md.
"""

import click
from common import Metric, Pattern, front

PATTERN = Pattern(
    program="thread_scaling",
    title="Threads on one device: pairs of free and allocation a second, nanoseconds a call",
    metrics=(
        Metric("one_thread_per_s", "1 thread /s", "more"),
        Metric("threads_per_s", "T threads /s", "more"),
        Metric("scaling", "scaling", "more", 2),
        Metric("best_scaling", "in the best windows", "more", 2),
        Metric("alloc_p99_ns", "alloc p99", "less"),
        Metric("free_p99_ns", "free p99", "less"),
        Metric("worst_us", "worst, us", "", 1),
    ),
    note="Our limits: two threads reach 1.6 x one; stalled, p99 of 10000 ns. native waits out the "
    "stall on its lock, as PyTorch does unless release_lock_on_cudamalloc is set. worst: of all "
    "calls, misses among them, which queue behind that growth and then grow themselves.",
    seconds=0.5,
)
THREADS = click.Option(["--threads"], type=click.IntRange(1, 64), help="T; default: the cores.")
main = front(PATTERN, THREADS)

if __name__ == "__main__":
    main()
