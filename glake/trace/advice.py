"""Advice on what to change about a job. Each piece of advice follows from a figure, and names it.

The thresholds are round numbers. Below them the gain would not be worth the change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import median

from glake.trace import allocator_advice as allocators
from glake.trace import holders, roles
from glake.trace.allocator_advice import Advice
from glake.trace.digest import Digest
from glake.units import counted, share, size, times

_ROLE_SHARE = 0.25
_LARGE_SHARE = 0.04
_GROWTH_SHARE = 0.01
_STEADY = 2.0
_UNEVEN_STEPS = 1.25

_LOSS = re.compile(r"logits|cross_entropy|log_softmax|nll_loss", re.I)
# In the projection to the vocabulary only the matrix product makes logits. Other operators there
# (casts, gathers) make copies of its weight.
_PROJECTION = re.compile(
    r"(lm_head|embed_out)[^;]*(;[^;]*(aten\.[^;]*mm|matmul|linear|einsum)[^;]*)?$", re.I
)

_GATHERS = re.compile(r"fsdp|all_gather|reduce_scatter|storage\.resize_", re.I)
# The advice for each role, as (words, text). A job for which _done() gives one of the words follows
# the advice already, so it is left out. "": the advice is always given.
_ROLE_ADVICE: dict[str, tuple[tuple[str, str], ...]] = {
    roles.PARAMETERS: (
        ("sharded", "shard them (FSDP, ZeRO-3)"),
        ("lora serving", "train adapters instead (LoRA)"),
        ("", "load them in fewer bytes"),
    ),
    roles.MASTERS: (
        ("sharded", "shard them with the optimizer's state (ZeRO-1, FSDP)"),
        ("offload", "offload them to host memory"),
        ("bf16", "train in bfloat16 alone"),
    ),
    roles.BUCKETS: (
        ("sharded", "under DDP, gradient_as_bucket_view=True keeps gradients in the buckets"),
        ("ddp fsdp2", "under ZeRO, make reduce_bucket_size and the prefetch bucket smaller"),
        ("ddp zero3", "under FSDP, wrap smaller modules"),
    ),
    roles.OPTIMIZER_STATE: (
        ("sharded", "shard it (ZeRO-1, FSDP)"),
        ("offload", "offload it to host memory"),
        ("", "use an optimizer that keeps 8 bits or one moment"),
    ),
    roles.OPTIMIZER_TEMPORARIES: (
        ("", "they live only within the update: fused=True needs none, foreach=False those of one "
        "parameter at a time"),
    ),
    roles.GRADIENTS: (
        ("sharded", "shard gradients (ZeRO-2, FSDP)"),
        ("", "accumulate them in the parameters' own precision"),
        ("", "free them with zero_grad(set_to_none=True) before the forward"),
    ),
    roles.ACTIVATIONS: (
        ("recompute", "recompute them in the backward (activation checkpointing)"),
        ("", "make the micro-batch or the sequence shorter"),
        ("", "offload them"),
    ),
}  # fmt: skip
_SHARDED = (roles.PARAMETERS, roles.MASTERS, roles.OPTIMIZER_STATE, roles.GRADIENTS)


def advise(job: Digest) -> list[Advice]:
    """All advice that the numbers of a job give. Advice on what keeps the job from running comes
    first."""
    rules = (
        _too_small,
        allocators.room,
        allocators.out_of_memory,
        allocators.headroom,
        allocators.compared,
        _roles,
        _loss,
        _largest,
        _activations,
        _growth,
        _uneven,
    )
    found = [each for rule in rules for each in rule(job)]
    if any(allocators.room(job)):  # if there is room, a saving is only a note
        found = [replace(each, level="note") if each.level == "saving" else each for each in found]
    order = ("problem", "saving", "note")
    return sorted(found, key=lambda each: order.index(each.level))


def _too_small(job: Digest) -> Iterator[Advice]:
    capacity, peak = job.capacity, job.peak.live
    if capacity is None or peak <= capacity:
        return
    if job.static is not None and job.static > capacity:
        yield Advice(
            "problem",
            size(job.static - capacity),
            "What the job keeps does not fit, whatever is computed",
            f"{size(job.static)} stay allocated from step to step, {size(job.static - capacity)} "
            f"more than the capacity of {size(capacity)}. A smaller batch does not help: shard "
            "over more devices, offload, or keep the model in fewer bytes.",
        )
        return
    if job.spans[0].step is None and job.spans[0].peak_live > capacity:
        held = job.spans[0].peak_live
        yield Advice(
            "problem",
            size(held - capacity),
            "Set-up alone does not fit",
            f"{size(held)} are live before the first step, {size(held - capacity)} more than the "
            f"capacity of {size(capacity)}. Shard the model, create it sharded from the start "
            "(meta device), or load it in fewer bytes.",
        )
        return
    span = job.span_at(job.peak.event)
    where = span.name if span else "the job"
    kept = "" if job.static is None else f", of which {size(job.static)} stay from step to step"
    yield Advice(
        "problem",
        size(peak - capacity),
        "More is live at once than the device has: no allocator can fit this",
        f"{size(peak)} are live at the peak ({where}, event {job.peak.event:,}){kept}; the "
        f"capacity is {size(capacity)}. At least {size(peak - capacity)} "
        f"({share(peak - capacity, peak)}) must go: see who holds it.",
    )


def _roles(job: Digest) -> Iterator[Advice]:
    done = _done(job)
    loss: Counter[str] = Counter()  # the loss has advice of its own
    for role, (tag, held, _) in roles.with_roles(job.peak.by_tag, job.peak.lasting):
        loss[role] += held if _of_loss(role, tag) else 0
    for role, total in roles.by_role(job.peak.by_tag, job.peak.lasting):
        held = total - loss[role]
        if held < _ROLE_SHARE * job.peak.live or role not in _ROLE_ADVICE:
            continue
        yield Advice(
            "saving",
            size(held),
            f"{role[0].upper()}{role[1:]}: {share(held, job.peak.live)} of the peak",
            f"{size(held)} of {size(job.peak.live)} live at the peak are {role}, judged by the "
            f"tags and by what outlives its step. {_what_to_do(role, done, job)}",
        )


def _done(job: Digest) -> set[str]:
    """The measures that the job takes already, by its header's strategy and its tags."""
    done = {word for word in re.split(r"[ ,]+", job.header.get("strategy", "").lower()) if word}
    if done & {"fsdp2", "zero3"} or any(_GATHERS.search(tag) for tag, _, _ in job.peak.by_tag):
        done.add("sharded")
    return done


def _what_to_do(role: str, done: set[str], job: Digest) -> str:
    ways = [way for already, way in _ROLE_ADVICE[role] if not done & set(already.split())]
    if "sharded" in done and role in _SHARDED:
        over = f" over {job.header['world']} ranks" if "world" in job.header else ""
        ways.append(f"use more ranks (they are sharded{over} already)")
    text = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])}, or {ways[-1]}"
    return f"{text[0].upper()}{text[1:]}."


def _loss(job: Digest) -> Iterator[Advice]:
    """Looks at the logits and the loss's tensors, which are often the largest of a model."""
    held = [
        holder
        for role, holder in roles.with_roles(job.peak.by_tag, job.peak.lasting)
        if _of_loss(role, holder[0])
    ]
    total = sum(held_bytes for _, held_bytes, _ in held)
    if not held or total < _LARGE_SHARE * job.peak.live:
        return
    blocks = sum(count for _, _, count in held)
    name = holders.frames_of(max(held, key=lambda each: each[1])[0])[-1]
    yield Advice(
        "saving",
        size(total),
        "Chunk the loss",
        f"Logits and the loss hold {size(total)} in {counted(blocks, 'block')} at the peak "
        f"({share(total, job.peak.live)}; most of it from {name}). Compute projection and loss in "
        "chunks of the sequence, or with a fused kernel that never holds all logits.",
    )


def _of_loss(role: str, tag: str) -> bool:
    if role in (roles.ACTIVATIONS, roles.OTHER) and _PROJECTION.search(tag):
        return "backward" not in tag.lower()
    return role in (roles.ACTIVATIONS, roles.GRADIENTS, roles.OTHER) and bool(_LOSS.search(tag))


def _largest(job: Digest) -> Iterator[Advice]:
    if not job.sizes or not job.peak.live:
        return
    largest, count = max(job.sizes)
    if largest < _LARGE_SHARE * job.peak.live:
        return
    often = "once" if count == 1 else f"{count:,} times"
    yield Advice(
        "note",
        size(largest),
        "The largest single request",
        f"{size(largest)} ({share(largest, job.peak.live)} of the peak), asked for {often}. An "
        "allocator that does not stitch must find it in one piece. It is smaller where logits are "
        "made in chunks of the sequence, or gathered weights by wrapping smaller modules.",
    )


def _activations(job: Digest) -> Iterator[Advice]:
    """Looks at blocks that live within a step, for traces whose tags do not name activations."""
    if job.static is None or job.peak.tagged:
        return
    transient = job.peak.live - job.static
    if not transient or transient < 0.5 * job.peak.live:
        return
    yield Advice(
        "saving",
        size(transient),
        f"{share(transient, job.peak.live)} of the peak lives within a step",
        f"{size(job.static)} stay from step to step; {size(transient)} come and go: activations, "
        "gradients, gathered weights. Recomputation, a smaller micro-batch or a shorter sequence "
        "lowers this part, sharding the other.",
    )


def _growth(job: Digest) -> Iterator[Advice]:
    """Looks at live memory at step starts. If it only ever rises, something is kept by mistake.

    If there are few steps, the end counts as one more start, unless it breaks a steady growth.
    """
    starts = [span.start_live for span in job.steps[2:]]
    where = "at the start of a step"
    if 2 <= len(starts) < 4 and job.end_live is not None:
        starts.append(job.end_live)
        where += " (the last: at the end)"
        grown_each = [after - before for before, after in pairwise(starts)]
        if max(grown_each) > _STEADY * min(grown_each):
            return
    elif len(starts) < 4 or starts != sorted(starts):
        return
    grown = starts[-1] - starts[0]
    if grown <= 0 or grown < _GROWTH_SHARE * job.peak.live:
        return
    each = grown / (len(starts) - 1)
    yield Advice(
        "problem",
        f"{size(each)} a step",
        "Memory kept grows with every step",
        f"Live memory {where} rises from {size(starts[0])} to {size(starts[-1])} "
        f"over {len(starts) - 1} steps, {size(each)} a step. Something keeps tensors: a loss that "
        "is summed with its graph (use .item() or .detach()), a list of outputs, a cache.",
    )


def _uneven(job: Digest) -> Iterator[Advice]:
    steps = job.steps[1:]
    if len(steps) < 3:
        return
    # If memory grows steadily, a step's own part is what it adds to the memory at the step's start.
    grows = any(_growth(job))
    own = [span.peak_live - (span.start_live - steps[0].start_live) * grows for span in steps]
    if max(own) < _UNEVEN_STEPS * median(own):
        return
    middle = median(span.peak_live for span in steps)
    top = max(steps, key=lambda span: span.peak_live)
    if not middle or top.peak_live < _UNEVEN_STEPS * middle:
        return
    yield Advice(
        "saving",
        size(top.peak_live - middle),
        "A few steps decide how much memory is needed",
        f"{top.name.capitalize()} peaks at {size(top.peak_live)}, {times(top.peak_live, middle)} "
        f"the median step's {size(middle)}. Batches of equal numbers of tokens, or a limit on the "
        f"longest sequence, would save up to {size(top.peak_live - middle)}.",
    )
