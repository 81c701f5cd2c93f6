"""If the disk has no room, the region stays in use and whole."""

import os
import resource
import tempfile

import torch

import glake

with glake.region("weights"):
    kept = torch.arange(1 << 20)
address, before = kept.data_ptr(), glake.regions()
with tempfile.TemporaryDirectory() as folder:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    for _ in range(2):
        try:
            glake.pause("weights", to="disk", folder=folder)
        except glake.RegionRefused as error:
            for part in (
                'region "weights"',
                "8.00 MiB cannot be kept in " + folder,
                "pause to host memory",
            ):
                assert part in str(error), error
        else:
            raise AssertionError("8 MiB in a file of 1 MiB")
        assert glake.regions() == before and before[0].state == "in use"
        assert kept.data_ptr() == address and torch.equal(kept, torch.arange(1 << 20))
    kept += 1  # it can be used
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    glake.pause("weights", to="disk", folder=folder)
    assert os.listdir(folder) == []
    glake.resume("weights", verify=True)
assert torch.equal(kept, torch.arange(1 << 20) + 1)
glake.check()
