"""A region is memory that goes to the driver while a phase rests and returns to its addresses.

GLAKE_SIM_MEMORY=1GiB python examples/pause_and_resume.py
"""

import torch

import glake

glake.enable(driver="sim")

with glake.region("weights", budget="256MiB"):
    model = torch.nn.Linear(1024, 1024)
before, address = model.weight.detach().clone(), model.weight.data_ptr()
held = glake.stats()["reserved_bytes.all.current"]

glake.pause("weights")  # bytes go to pinned host memory, granules to the driver
print(f"paused: {(held - glake.stats()['reserved_bytes.all.current']) >> 20} MiB given back")
assert glake.stats()["reserved_bytes.all.current"] < held

glake.resume("weights")
assert model.weight.data_ptr() == address
assert torch.equal(model.weight, before)
print("resumed: the same bytes at the same address")
