"""Writes three checkpoints. The disk takes no file of the second one's size."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch.distributed as dist
from stand_in import NoOptimizer, StandIn

from glake.trainer.checkpoint import Checkpoint, disk


def main() -> None:
    """Prints what the user was told, and which files are there in the end."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    said: list[str] = []
    config = Checkpoint.Config(folder=str(folder), every=2, memory=False)
    checkpoint = config.build(group=dist.group.WORLD, say=said.append, text="", signature={})
    model = StandIn(10_000)
    checkpoint.resume(model.state, NoOptimizer())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step in range(1, 7):
        checkpoint.settle()
        checkpoint._await_written()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096 if step == 4 else hard, hard))
        model.step(step)
        checkpoint.after_step(step, {})
    checkpoint._await_written()
    checkpoint.close()
    whole, partial = disk.found_in(folder), folder.glob(".step-*")
    found = {
        "said": said,
        "markers": sorted(each.path.name for each in whole),
        "partial": [str(each) for each in partial],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
