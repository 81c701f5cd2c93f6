"""RL on one GPU: the trainer's memory goes to the host while the rollout engine's comes back.

GLAKE_SIM_MEMORY=1GiB python examples/handover.py
"""

from concurrent.futures import ThreadPoolExecutor

import torch

import glake
from glake import transfer

glake.enable(driver="sim")
transfer.default_engine()  # opened before, so that bytes go over every path

with glake.region("trainer"):
    trainer = torch.nn.Linear(4096, 4096)
with glake.region("rollout"):
    rollout = torch.nn.Linear(4096, 4096)
kept = [each.weight.detach().clone() for each in (trainer, rollout)]
glake.pause("rollout")

for out, back in [("trainer", "rollout"), ("rollout", "trainer")] * 2:
    with ThreadPoolExecutor() as at_once:  # uses both directions of every link
        leaving, coming = at_once.submit(glake.pause, out), at_once.submit(glake.resume, back)
        print(f"{out} gave back {leaving.result() >> 20} MiB, {back} took {coming.result() >> 20}")

glake.resume("rollout")
for module, weight in zip((trainer, rollout), kept, strict=True):
    assert torch.equal(module.weight, weight)
print("handed over four times: the same bytes at the same addresses")
