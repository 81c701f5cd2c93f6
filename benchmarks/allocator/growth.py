"""What new memory costs, by the size of the driver's handles and by allocator.

    python benchmarks/allocator/growth.py [--rounds N] [--json] [--out DIR]

"handles of N" are the driver's calls alone. Driver time is modelled from published tables; `make
gpu` measures a real driver (benchmarks/gpu/driver_calls.cpp). How to read it: docs/benchmarks.md.
"""

from common import Metric, Pattern, front

PATTERN = Pattern(
    program="growth",
    title="Growth: driver calls and their modelled time, by handle size and by allocator",
    metrics=(
        Metric("driver_calls", "driver calls", "less"),
        Metric("driver_us", "driver us: published", "less"),
        Metric("driver_us_a100", "a100-kvcached", "less"),
        Metric("driver_us_per_gib", "published / GiB"),
        Metric("host_us", "host us"),
        Metric("held_per_asked", "held / asked", "less", 3),
    ),
    note="Host time of glake and of handles contains the simulated driver's own.",
)

main = front(PATTERN)

if __name__ == "__main__":
    main()
