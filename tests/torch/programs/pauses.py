"""Training gives the same losses if its weights are paused between steps."""

import tempfile

import torch

import glake


def losses(pauses):
    torch.manual_seed(1)
    with glake.region("weights"):
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    addresses = [p.data_ptr() for p in model.parameters()]
    told = []
    for step in range(6):
        if pauses:
            to = ("host", "disk")[step % 2]
            folder = tempfile.gettempdir() if to == "disk" else None
            given = glake.pause("weights", to=to, folder=folder)
            (region,) = [r for r in glake.regions() if r.name == "weights"]
            assert region.state == "paused" and region.to == to and region.reserved == 0
            assert given == region.paused > 0 and region.saved >= region.live
            assert glake.stats()["glake.paused_bytes"] == given
            torch.ones(1 << 20)  # others go on
            assert glake.resume("weights") == given
        loss = model(torch.randn(8, 256)).square().mean()
        loss.backward()
        with glake.region("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        if pauses:
            glake.pause("optimizer")
            glake.resume("optimizer", verify=False)
        told.append(loss.item())
    assert addresses == [p.data_ptr() for p in model.parameters()]
    glake.check()
    return told


assert losses(True) == losses(False)
