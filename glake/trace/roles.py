"""The role of each block that is live at a moment, by its tag and by how long it lives.

The first frame of a tag is the phase in which the block was allocated. In set-up the last frame is
the block's kind, if the recorder knew it (docs/trace-format.md). A block that an optimizer
allocates is its state if it outlives the step, and otherwise a temporary of the update.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from glake.trace.holders import Holder

PARAMETERS = "parameters and buffers"
MASTERS = "master weights"
BUCKETS = "gradient buckets and communication buffers"
OPTIMIZER_STATE = "optimizer state"
OPTIMIZER_TEMPORARIES = "optimizer temporaries"
GRADIENTS = "gradients and backward's own"
GATHERED = "gathered weights"
ACTIVATIONS = "activations"
WORKSPACES = "kernel workspaces"
SETUP_TEMPORARIES = "temporaries of set-up"
OTHER = "other"

KINDS = {
    "parameter": PARAMETERS,
    "buffer": PARAMETERS,
    "master": MASTERS,
    "gradient": GRADIENTS,
    "communication": BUCKETS,
}
"""The role of a block of set-up, by the last frame of its tag, which is the block's kind."""

# FSDP gathers into storages that it resizes in place.
_RESIZED = "storage.resize_"

_SETUP = re.compile(r"set-?up|init|build|model|weights?|param", re.I)
_OPTIMIZER = re.compile(r"optim", re.I)
_BACKWARD = re.compile(r"backward|grad", re.I)
_WORKSPACE = re.compile(r"workspace|scratch", re.I)
_FORWARD = re.compile(r"forward|recompute", re.I)


def role_of(tag: str, lasting: bool, kinds: bool = False) -> str:
    """The role of a block. ``lasting``: it outlives its step. ``kinds``: the recorder put kinds
    into the tags of set-up. Then a block without a kind is no parameter. It is a temporary, or a
    bucket or buffer of the code that spreads the job."""
    frames = tag.split(";")
    phase, last = frames[0], frames[-1]
    if _SETUP.match(phase):
        if len(frames) > 1 and last in KINDS:
            return KINDS[last]
        if not kinds:
            return PARAMETERS
        return BUCKETS if lasting else SETUP_TEMPORARIES
    if _OPTIMIZER.match(phase):
        return OPTIMIZER_STATE if lasting else OPTIMIZER_TEMPORARIES
    if last == _RESIZED:
        return GATHERED
    for role, pattern in (
        (GRADIENTS, _BACKWARD),
        (WORKSPACES, _WORKSPACE),
        (ACTIVATIONS, _FORWARD),
    ):
        if pattern.match(phase):
            return role
    return OTHER


def by_role(held: Sequence[Holder], lasting: Sequence[Holder]) -> list[tuple[str, int]]:
    """Bytes by role, the largest first. It is empty for a trace without tags.

    ``held`` is ``Trace.holders(event)``. ``lasting`` is ``Trace.lasting(event)``, the part of it in
    blocks that outlive their step.
    """
    if not any(tag for tag, _, _ in held):
        return []
    sums: dict[str, int] = {}
    for role, (_, size, _) in with_roles(held, lasting):
        sums[role] = sums.get(role, 0) + size
    return sorted(sums.items(), key=lambda each: -each[1])


def with_roles(held: Sequence[Holder], lasting: Sequence[Holder]) -> Iterator[tuple[str, Holder]]:
    """(role, holder) of live blocks. A tag has two roles if only a part of it outlives its step."""
    kinds = any(_has_kind(tag) for tag, _, _ in held)
    stays = {tag: (size, blocks) for tag, size, blocks in lasting}
    for tag, size, blocks in held:
        kept, of = stays.get(tag, (0, 0))
        for part, count, outlives in ((kept, of, True), (size - kept, blocks - of, False)):
            if part:
                yield role_of(tag, outlives, kinds), (tag, part, count)


def _has_kind(tag: str) -> bool:
    frames = tag.split(";")
    return len(frames) > 1 and frames[-1] in KINDS and _SETUP.match(frames[0]) is not None
