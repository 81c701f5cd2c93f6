"""Training steps: forward, backward and update of a causal language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glake.trace.plans import models, moe, strategies
from glake.trace.plans.configs import Model
from glake.trace.plans.options import PlanOptions


def tokens(job: Any, vocab: int, batch: int, length: int) -> Any:
    """A batch of token ids (batch, length), which is made on the host and copied to the device."""
    import torch

    made = torch.randint(0, vocab, (batch, length), dtype=torch.int64, device="cpu")
    return made.to(job.device, non_blocking=True)


def note(job: Any, model: Model, options: PlanOptions, **more: object) -> None:
    """Tells the trace's header what the job is, if the recorder has a place for it."""
    facts = getattr(job, "facts", None)
    if facts is not None:
        facts |= {"model": model.name, "strategy": summary(options), **more}


def summary(options: PlanOptions) -> str:
    """The strategy in a few words: ``fsdp2, lora 16, recompute, offload optimizer, mixed``."""
    words = [options.strategy]
    if options.workload != "train":
        words.insert(0, options.workload)
    if options.lora:
        words.append(f"lora {options.lora}")
    if options.recompute != "no":
        words.append("recompute")
    if options.offload != "none":
        words.append(f"offload {options.offload}")
    return ", ".join([*words, options.precision])


def make_step(job: Any, model: Model, options: PlanOptions) -> Callable[[int], None]:
    """The function that does training step i: ``accumulate`` micro-batches and one update."""
    config = model.build()
    models.check_length(config, model.name, _longest(options), f"seq={options.seq.text}")
    drawn = moe.start(options, job.seed)
    engine = strategies.make(job, model, options)
    length = options.seq.series(job.seed, options.multiple)
    batches = range(job.steps * options.accumulate)
    note(job, model, options, sequence_lengths=" ".join(str(length(i)) for i in batches))

    def step(i: int) -> None:
        for part in range(options.accumulate):
            drawn.batch = number = i * options.accumulate + part
            ids = tokens(job, config.vocab_size, options.batch, length(number))
            with engine.autocast():
                loss = engine.model(input_ids=ids, labels=ids, use_cache=False).loss
            engine.backward(loss / options.accumulate, part + 1 == options.accumulate)
            del loss, ids
        engine.step()

    return step


def _longest(options: PlanOptions) -> int:
    return -(-options.seq.most // options.multiple) * options.multiple
