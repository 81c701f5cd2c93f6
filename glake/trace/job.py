"""The job that `glake plan` records: the argument of make_step, and the errors of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
        world: ranks of the (fake) process group.
        rank: this one.
        device: where the job's tensors belong: "cuda".
        steps: how many are recorded.
        seed: for the job's own choices, such as sequence lengths.
        options: the `-o key=value` pairs of the command line.
        facts: what the trace's header should say (model, strategy, sequence_lengths); the job may
            add to it.
    """

    world: int = 1
    rank: int = 0
    device: str = "cuda"
    steps: int = 4
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
