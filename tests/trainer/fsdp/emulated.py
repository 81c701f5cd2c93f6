"""Trains with each kind of offload in glake's emulation, and prints the results as JSON."""

import copy
import json

import nets
import test_alone
import torch

from glake import transfer
from glake.allocator import torch as allocator
from glake.trainer.fsdp import offload

offload.SMALLEST = 1


def copies():
    """How many copies the engine made: small ones are plain, large ones go in chunks."""
    stats = transfer.stats()
    return stats["plain_copies"] + stats["transfers"]


found = {"mode": allocator.mode()}
torch.manual_seed(0)
model = nets.Net()
found["expected"] = test_alone.plain_losses(copy.deepcopy(model))
for options in (
    {"offload": "parameters"},
    {"offload": "optimizer"},
    {"activation_offload": True},
):
    before = copies()
    sharded, optimizer = test_alone.sharded_of(copy.deepcopy(model), **options)
    sharded.attach(optimizer)
    losses = test_alone.sharded_losses(sharded, optimizer)
    found[str(options)] = {"losses": losses, "copies": copies() - before}
print(json.dumps(found))
