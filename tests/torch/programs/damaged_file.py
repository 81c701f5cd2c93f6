"""A region whose file was cut short or changed stays paused."""

import glob
import os
import tempfile

import torch

import glake


def kept_in(folder):
    for link in glob.glob("/proc/self/fd/*"):
        try:
            if os.readlink(link).startswith(folder):
                return link
        except FileNotFoundError:
            pass


def fails(kind, text):
    try:
        glake.resume("weights")
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")
    (region,) = glake.regions()
    assert region.state == "paused" and region.saved == 8 << 20


with glake.region("weights"):
    kept = torch.arange(1 << 20)
with tempfile.TemporaryDirectory() as folder:
    glake.pause("weights", to="disk", folder=folder)
    with open(kept_in(folder), "r+b") as file:
        content = file.read()
        file.truncate(1 << 20)
        fails(glake.Corrupted, f"a file in {folder} are not all there: something has cut")
        file.seek(0)
        file.write(content[:-1] + b"x")
        file.flush()
        fails(glake.Corrupted, "something has written there")
        file.seek(0)
        file.write(content)
    glake.resume("weights")
assert torch.equal(kept, torch.arange(1 << 20))
