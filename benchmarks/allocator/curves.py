"""What an operation costs as there is more of everything, beside PyTorch's allocator.

    python benchmarks/allocator/curves.py [--only TEXT] [--most N] [--rounds N] [--json] [--out DIR]

None of our curves should rise faster than log n. The picture has one panel a curve. How to read
it: docs/benchmarks.md.
"""

import click
from common import Metric, Pattern, front

PATTERN = Pattern(
    program="curves",
    title="What an operation costs as n grows",
    metrics=(
        Metric("ns", "host ns", "less"),
        Metric("calls", "driver calls", "", 2),
        Metric("host_bytes", "host bytes a block", "less"),
    ),
    note="The number after the colon is n. Host time of glake contains the simulated driver's own; "
    "the model has no driver. Driver calls are all of an operation's, events and queries too. "
    "Stitching and random sizes are by the policy compact.",
)
OPTIONS = (
    click.Option(["--most"], type=click.IntRange(4), help="Leave out every n above."),
    click.Option(["--only"], help="The curves whose name contains this."),
)
main = front(PATTERN, *OPTIONS)

if __name__ == "__main__":
    main()
