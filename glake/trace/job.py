"""The job that `glake plan` records: the argument of make_step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from glake import arguments
from glake.errors import InvalidArgument

ATTENTION = ("flash", "efficient", "math")
"""Kernels of scaled_dot_product_attention a plan can prefer, as torch's CUDA build names them."""

SCRATCH = ("default", "hopper", "ampere", "none")
"""Tables of kernel scratch (glake/trace/scratch.py); default is the largest, hopper."""

Step = Callable[[int], None]


@dataclass(frozen=True)
class Job:
    """The argument of `make_step(job)`, which builds model and optimizer, and returns a step
    function.

    Attributes:
        world: the number of ranks of the (fake) process group.
        rank: the number of this rank.
        device: the device of the job's tensors: "cuda".
        steps: how many are recorded.
        seed: for the job's own choices, such as sequence lengths.
        options: the `-o key=value` pairs of the command line.
        facts: entries of the trace's header (model, strategy, sequence_lengths). The job may add
            some.

    Raises:
        WrongType: a value of another type.
        InvalidArgument: the world has no such rank, or there is no step.
    """

    world: int = 1
    rank: int = 0
    device: str = "cuda"
    steps: int = 4
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises as the class says."""
        for name in ("world", "rank", "steps", "seed"):
            arguments.count(name, getattr(self, name))
        if not 0 <= self.rank < self.world:
            raise InvalidArgument(f"rank {self.rank} of {self.world}: 0 to world - 1")
        if self.steps < 1:
            raise InvalidArgument(f"{self.steps} steps: at least one")
        arguments.text("device", self.device)
        arguments.text_map("options", self.options)
