"""The fine-tuning job: LoRA on Llama 3 8B, batches of varying length, recomputation, offload.

finetune.py SEQUENCES [--steps N] [--size NAME] trains by glake.trainer on the GPU that PyTorch
sees, a real one or that of a dry run. The text is the source of Python's own standard library. Each
function is a sequence of up to 2,048 bytes, and a batch is padded to its longest. Frozen weights
are bf16. For the backward pass each block keeps only its input, in host memory. The logits of 4,096
tokens exist at once.
"""

from __future__ import annotations

import argparse
import sysconfig
from typing import Any

DATA = {
    "path": sysconfig.get_path("stdlib"),
    "pattern": "*.py",
    "separator": "\ndef ",
    "arrangement": "padded",
    "length": 2048,
}


def experiment(size: str, sequences: int, steps: int) -> Any:
    # Imported here, so that others can read DATA without PyTorch, whose CUDA build may not start.
    from glake.trainer.fsdp import Sharding
    from glake.trainer.loop import Experiment
    from glake.trainer.models import sizes
    from glake.trainer.models.lora import with_lora
    from glake.trainer.optimizers import AdamW

    model = with_lora(sizes.model(size), rank=16, alpha=32, dtype="bfloat16")
    model.loss_rows = 4096
    config = Experiment.Config(
        model=model,
        sharding=Sharding.Config(compute_dtype="bfloat16", recompute=True, activation_offload=True),
        optimizer=AdamW.Config(lr=1e-4, fused=True),
        sequences=sequences,
        steps=steps,
        data=DATA,
    )
    config.set("log.every", 1)
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sequences", type=int)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--size", default="llama-3-8b")
    options = parser.parse_args()
    from glake.trainer.loop import train

    train(experiment(options.size, options.sequences, options.steps))


if __name__ == "__main__":
    main()
