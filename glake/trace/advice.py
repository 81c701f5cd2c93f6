"""What to change about a job: each piece of advice follows from a figure and carries it.

The thresholds are round numbers below which the gain would not be worth the change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from glake.trace import holders, roles
from glake.trace.digest import Digest, PolicyDigest
from glake.trace.units import counted, micros, share, size, times

_WASTE_SHARE = 0.02
_ROLE_SHARE = 0.25
_LARGE_SHARE = 0.04
_GROWTH_SHARE = 0.01
_STEADY = 2.0
_UNEVEN_STEPS = 1.25
_DRIVER_US = 1000.0

_LOSS = re.compile(r"logits|cross_entropy|log_softmax|nll_loss", re.I)
# The projection has logits where its product is made; its casts, its gradients and what it gathers
# are its weight's.
_PROJECTION = re.compile(
    r"(lm_head|embed_out)[^;]*(;[^;]*(aten\.[^;]*mm|matmul|linear|einsum)[^;]*)?$", re.I
)

_ROLE_ADVICE = {
    roles.PARAMETERS: "Shard them (FSDP, ZeRO-3), train adapters instead (LoRA), or load "
    "them in fewer bytes.",
    roles.MASTERS: "Shard them with the optimizer's state (ZeRO-1, FSDP), offload them to host "
    "memory, or train in bfloat16 alone.",
    roles.BUCKETS: "DDP: gradient_as_bucket_view=True keeps gradients in the buckets instead of "
    "beside them. ZeRO: make reduce_bucket_size and the prefetch bucket smaller.",
    roles.OPTIMIZER_STATE: "Shard it (ZeRO-1, FSDP), offload it to host memory, or use an "
    "optimizer that keeps 8 bits or one moment.",
    roles.OPTIMIZER_TEMPORARIES: "They live only within the update: fused=True needs none, "
    "foreach=False those of one parameter at a time.",
    roles.GRADIENTS: "Shard gradients (ZeRO-2, FSDP), accumulate in the "
    "parameters' own precision, and free them with zero_grad(set_to_none=True) before the forward.",
    roles.ACTIVATIONS: "Recompute them in the backward (activation checkpointing), make the "
    "micro-batch or the sequence shorter, or offload them.",
}


@dataclass(frozen=True)
class Advice:
    """``level`` is ``problem`` (it does not run so), ``saving`` or ``note``; ``figure`` is the
    number it rests on."""

    level: str
    figure: str
    title: str
    text: str


def advise(job: Digest) -> list[Advice]:
    """All that the numbers of a job suggest, what keeps it from running first."""
    rules = (
        _too_small,
        _out_of_memory,
        _headroom,
        _fragmentation,
        _roles,
        _loss,
        _largest,
        _activations,
        _growth,
        _uneven,
        _driver,
    )
    found = [each for rule in rules for each in rule(job)]
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


def _out_of_memory(job: Digest) -> Iterator[Advice]:
    """Policies that fail although the bytes would be there."""
    capacity = job.capacity
    if capacity is None or job.peak.live > capacity:
        return
    runs = [each for each in job.policies if each.fits and each.own]
    for each in job.policies:
        oom = each.result.oom
        if oom is None or each.at_oom is None:
            continue
        free = capacity - each.at_oom.live
        hole = need = ""
        if each.layout is not None and each.layout.free:
            hole = (
                f" Just before, it held {size(each.layout.free)} free in {each.layout.holes:,} "
                f"pieces, the largest {size(each.layout.largest_free)}."
            )
        if each.result.min_capacity_bytes is not None:
            need = f" It needs {size(each.result.min_capacity_bytes)}."
        cure = (
            f" {runs[0].name} runs the job here: {_switch(runs[0].name)}."
            if runs and not each.own
            else f" Live memory peaks at {size(job.peak.live)}: the capacity leaves "
            f"{size(capacity - job.peak.live)} above that."
        )
        yield Advice(
            "problem",
            size(free),
            f"{each.name} runs out of memory with memory not in use",
            f"{_where(oom.step)}, event {oom.event:,}: {size(each.at_oom.live)} of "
            f"{size(capacity)} are live, {size(free)} are not.{hole}{need}{cure}",
        )


def _switch(policy: str) -> str:
    return "GLAKE_ALLOCATOR=1" + (" GLAKE_POLICY=compact" if policy == "compact" else "")


def _where(step: int | None) -> str:
    return "In set-up" if step is None else f"In step {step}"


def _headroom(job: Digest) -> Iterator[Advice]:
    for each in job.policies:
        least, capacity = each.result.min_capacity_bytes, job.capacity
        if each.name != "glake" or least is None or capacity is None:
            continue
        if capacity - least < _WASTE_SHARE * capacity:
            continue
        yield Advice(
            "note",
            size(capacity - least),
            "Room to spare under glake",
            f"The job needs at least {size(least)} of the {size(capacity)}: "
            f"{size(capacity - least)} ({share(capacity - least, capacity)}) are left for a larger "
            "batch or a longer sequence.",
        )


def _fragmentation(job: Digest) -> Iterator[Advice]:
    """What a model of another allocator needs beyond glake, where both run."""
    for each in job.policies:
        if each.modelled and each.fits:
            yield from _needs_more(job, each)
            yield from _holds_more(job, each)


def _needs_more(job: Digest, each: PolicyDigest) -> Iterator[Advice]:
    own = job.policy("glake")
    least = each.result.min_capacity_bytes
    if own is None or least is None or own.result.min_capacity_bytes is None:
        return
    saved = least - own.result.min_capacity_bytes
    if saved < _WASTE_SHARE * least:
        return
    live = each.result.trace_peak_live_bytes
    yield Advice(
        "saving",
        size(saved),
        f"{each.name} needs a larger device than glake does",
        f"It runs in no less than {size(least)} ({times(least, live)} the live memory), glake in "
        f"{size(own.result.min_capacity_bytes)} "
        f"({times(own.result.min_capacity_bytes, live)}), {size(saved)} less: GLAKE_ALLOCATOR=1.",
    )


def _holds_more(job: Digest, each: PolicyDigest) -> Iterator[Advice]:
    """At a limit every caching allocator fills up to it, so only what is below one says much."""
    held, live = each.result.peak_physical_bytes, each.result.peak_live_bytes
    if job.capacity is not None and held > (1 - _WASTE_SHARE) * job.capacity:
        return
    own = [one for one in job.policies if one.own and one.fits]
    best = min(own, key=lambda one: one.result.peak_physical_bytes, default=None)
    if best is None:
        return
    saved = held - best.result.peak_physical_bytes
    if saved < _WASTE_SHARE * held:
        return
    yield Advice(
        "saving",
        size(saved),
        f"{each.name} holds {size(held - live)} that nobody uses",
        f"It takes {size(held)} from the device for {size(live)} of live memory "
        f"({times(held, live)}); {best.name} takes {size(best.result.peak_physical_bytes)} for the "
        f"same job, {size(saved)} less: {_switch(best.name)}.{_stranded(each)}",
    )


def _stranded(each: PolicyDigest) -> str:
    layout = each.layout
    if layout is None or len(layout.free_by_stream) < 2:
        return ""
    main = max(layout.free_by_stream, key=lambda stream: layout.free_by_stream[stream])
    side = sum(layout.free_by_stream.values()) - layout.free_by_stream[main]
    if side < _WASTE_SHARE * layout.physical:
        return ""
    return (
        f" At the job's peak {size(side)} of its free memory belong to other streams than {main}."
    )


def _roles(job: Digest) -> Iterator[Advice]:
    for role, held in roles.by_role(job.peak.by_tag, job.peak.lasting):
        if held < _ROLE_SHARE * job.peak.live or role not in _ROLE_ADVICE:
            continue
        yield Advice(
            "saving",
            size(held),
            f"{role[0].upper()}{role[1:]}: {share(held, job.peak.live)} of the peak",
            f"{size(held)} of {size(job.peak.live)} live at the peak are {role}, judged by the "
            f"tags and by what outlives its step. {_ROLE_ADVICE[role]}",
        )


def _loss(job: Digest) -> Iterator[Advice]:
    """Logits and what the loss makes of them are often the largest tensors of a model."""
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
        "allocator that does not stitch must find it in one piece; split it (logits: chunk the "
        "loss; gathered weights: wrap smaller modules).",
    )


def _activations(job: Digest) -> Iterator[Advice]:
    """For traces whose tags do not say it: what comes and goes within a step."""
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
    """Live memory at step starts that only ever rises is something kept by mistake.

    Of few steps the end counts as one more start, unless it breaks a growth that is steady.
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
    # Where memory grows steadily, a step's own part is what it adds to its start.
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


def _driver(job: Digest) -> Iterator[Advice]:
    own = job.policy("glake")
    if own is None or not own.fits or own.result.driver_us_per_step is None:
        return
    cost, waits = own.result.driver_us_per_step, own.result.stream_waits_per_step or 0.0
    for each in job.policies:
        pays = each.result.driver_us_per_step
        if not each.modelled or not each.fits or pays is None or pays - cost < _DRIVER_US:
            continue
        more = f"{micros(pays - cost)} a step"
        yield Advice(
            "saving",
            more,
            f"{each.name} spends more time in the driver than glake",
            f"{micros(pays)} a step of mapping and allocation calls, modelled, mean over the "
            f"second half of the steps: {more} above glake, which makes {waits:.1f} stream waits a "
            "step at this capacity.",
        )
