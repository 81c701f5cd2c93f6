"""Several ready plans in one recording, one in each step, because importing transformers takes
seconds."""

import dataclasses
import gc

from glake.trace import plans

SIZES = {"layers": "4", "hidden": "512", "heads": "8", "ffn": "2048", "vocab": "1024"}
SHORT = {"seq": "64", "precision": "mixed"}

# (name, world, options). It is known how much a rank of each holds at the end of a step.
STRATEGIES = [
    ("single", 1, {}),
    ("single", 1, {"precision": "bf16"}),
    ("single", 1, {"offload": "optimizer"}),
    ("ddp", 2, {}),
    ("fsdp2", 2, {}),
    ("fsdp2", 2, {"offload": "params"}),
    ("zero3", 2, {}),
    ("zero3", 2, {"offload": "optimizer"}),
]

# Recorded only to see that they run.
OTHERS = [
    ("custom", {"lora": "4", "recompute": "yes"}),
    ("custom", {"lora": "4", "recompute": "yes", "strategy": "zero3"}),
    ("gpt2", {"recompute": "reentrant", "eager-attention": "yes", "accumulate": "2"}),
    ("mixtral-8x7b", {"routing": "skewed", "kv-heads": "2", "recompute": "yes"}),
    ("mixtral-8x7b", {"precision": "bf16", "kv-heads": "2"}),
    ("custom", {"workload": "serving", "output": "uniform:2-4", "batch": "3", "ticks": "6"}),
    ("opt-1.3b", {"workload": "rlhf", "output": "4", "recompute": "yes"}),
]


def strategies(job):
    """Step i: two training steps of STRATEGIES[i], whose state stays until step i ends."""
    kept = []

    def step(i):
        kept.clear()
        gc.collect()
        name, world, more = STRATEGIES[i]
        options = {**SIZES, **SHORT, "strategy": name, **more}
        train = plans.find("custom")(dataclasses.replace(job, world=world, options=options))
        train(0)
        train(1)
        kept.append(train)

    return step


def others(job):
    def step(i):
        name, more = OTHERS[i]
        options = {**SIZES, **SHORT, **more}
        if name == "gpt2":
            del options["ffn"]
        train = plans.find(name)(dataclasses.replace(job, options=options, facts={}))
        train(0)
        train(1)
        del train
        gc.collect()

    return step
