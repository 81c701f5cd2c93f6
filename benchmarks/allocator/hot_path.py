"""The allocation hot path, one thread: hits only, every call timed by itself.

    python benchmarks/allocator/hot_path.py [--seconds S] [--rounds N] [--json] [--out DIR]

200 live blocks of 32 sizes; each operation frees a random one and allocates another of those sizes,
as a training step does. Nothing is mapped while the clock runs (the column of driver calls shows
it). How to read it: docs/benchmarks.md.
"""

from common import Metric, Pattern, front

PATTERN = Pattern(
    program="hot_path",
    title="Hot path: one thread, hits, nanoseconds a call",
    metrics=(
        Metric("alloc_p50_ns", "alloc p50", "less"),
        Metric("alloc_p99_ns", "alloc p99", "less"),
        Metric("free_p50_ns", "free p50", "less"),
        Metric("free_p99_ns", "free p99", "less"),
        Metric("pair_mean_ns", "pair, mean*", "less"),
        Metric("driver_calls", "driver calls"),
    ),
    note="Our limits: p50 of 100 ns an allocation and 60 ns a free, p99 of 1000 ns. "
    "*: of the fastest 99 %.",
    seconds=0.5,
)

main = front(PATTERN)

if __name__ == "__main__":
    main()
