"""A GPT whose weights and optimizer are paused between steps; a graph replayed after a resume."""

import runpy
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import glake
from glake import transfer

Block = runpy.run_path(str(Path(__file__).with_name("gpt.py")))["Block"]


def train(pauses: bool, steps: int = 6) -> list[float]:
    torch.manual_seed(0)
    width, words = 64, 100
    with glake.region("weights"):
        model = nn.Sequential(
            nn.Embedding(words, width), Block(width, 4, 0.0), nn.Linear(width, words)
        ).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    places = [p.data_ptr() for p in model.parameters()]
    losses = []
    for step in range(steps):
        if pauses:
            disk = step % 2 == 1
            held = torch.cuda.memory_reserved()
            given = glake.pause(
                "weights", "disk" if disk else "host", tempfile.gettempdir() if disk else None
            )
            if step != 0:
                given += glake.pause("optimizer")
            assert torch.cuda.memory_reserved() == held - given, (held, given)
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(7)
            torch.cuda.empty_cache()
            if step != 0:
                glake.resume("optimizer")
            glake.resume("weights")
        data = torch.randint(0, words, (4, 33))
        x, y = data[:, :-1].cuda(), data[:, 1:].reshape(-1).cuda()
        loss = F.cross_entropy(model(x).view(-1, words), y)
        loss.backward()
        with glake.region("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert places == [p.data_ptr() for p in model.parameters()]
    return losses


def replay() -> None:
    with glake.region("weights"):
        weight = torch.full((1 << 16,), 3.0, device="cuda")
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        weight + 1
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        answer = weight * 2
    for value in (3.0, 5.0):
        weight.fill_(value)
        glake.pause("weights")
        try:
            with glake.region("weights"):
                torch.ones(9, device="cuda")
        except RuntimeError as error:
            assert 'region "weights" on cuda:0 is paused' in str(error), error
        else:
            raise AssertionError("an allocation in a paused region")
        glake.resume("weights")
        graph.replay()
        torch.cuda.synchronize()
        assert bool((answer == 2 * value).all()), answer[:4]
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            glake.pause("weights")
    except glake.RegionRefused as error:
        assert "a stream is being captured" in str(error), error
    else:
        raise AssertionError("paused in a capture")


def copies() -> None:
    """glake refuses to copy memory of a paused region before the GPU sees the address."""
    with glake.region("weights"):
        large, small = (torch.ones(count, device="cuda") for count in (1 << 20, 16))
    other, pool = torch.zeros(1 << 20, device="cuda"), transfer.Offloader("64MiB")
    host, little = (transfer.pinned((count,), torch.float32) for count in (1 << 20, 16))
    path = Path(tempfile.mkdtemp()) / "file"
    glake.pause("weights")
    for call in (
        lambda: transfer.copy(host, large),
        lambda: transfer.copy(small, little),
        lambda: transfer.copy(other, large),
        lambda: transfer.copy_batch([(host, other), (little, small)]),
        lambda: transfer.write_file(path, large),
        lambda: pool.offload([other, large]),
        lambda: pool.prefetch([small]),
    ):
        try:
            call()
        except glake.RegionPaused as error:
            assert 'region "weights" on cuda:0, which is paused: glake.resume(' in str(error), error
        else:
            raise AssertionError("a copy of a paused region")
    assert pool.used == 0 and not path.exists()
    glake.resume("weights", verify=True)
    transfer.copy(host, large).wait()
    pool.offload([large]).wait()
    assert bool((host == 1).all()) and bool((large == 1).all()) and large.device.type == "cpu"


assert train(True) == train(False)
copies()
replay()
glake.check()
sys.stdout.write("equal\n")
