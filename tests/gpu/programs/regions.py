"""Regions: memory that goes back to the driver and returns at the same addresses."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor

import torch
from checks import DEVICE, MIB, main, numbers, raises, settle

import glake

SIZES = (1000, 3 * MIB + 7, 40 * MIB, 300 * MIB)


def free_bytes() -> int:
    """Free bytes of the device, as the driver counts them."""
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def filled(size: int, seed: int) -> torch.Tensor:
    """Bytes on the device that differ from those of another seed."""
    return ((torch.arange(size, device=DEVICE) * (2 * seed + 3)) % 251).to(torch.uint8)


def check_addresses_and_bytes_stay() -> None:
    expected = [filled(size, seed) for seed, size in enumerate(SIZES)]
    with glake.region("weights"):
        tensors = [each.clone() for each in expected]
    views = [each[len(each) // 3 :] for each in tensors]
    addresses = [each.data_ptr() for each in tensors]
    for verify in (False, True):
        before = free_bytes()
        given = glake.pause("weights")
        assert given >= sum(SIZES) and free_bytes() >= before + given - 2 * MIB
        # Other work takes the memory meanwhile, and writes into it.
        rubbish = [torch.full((64 * MIB,), 255, dtype=torch.uint8, device=DEVICE) for _ in range(8)]
        del rubbish
        assert glake.resume("weights", verify=verify) == given
        assert [each.data_ptr() for each in tensors] == addresses
        for tensor, view, wanted in zip(tensors, views, expected, strict=True):
            assert torch.equal(tensor, wanted) and torch.equal(view, wanted[len(wanted) // 3 :])


def check_disk_and_discard() -> None:
    wanted = filled(70 * MIB + 3, 4)
    with glake.region("cache"):
        tensor = wanted.clone()
    with tempfile.TemporaryDirectory() as folder:
        glake.pause("cache", to="disk", folder=folder)
        glake.resume("cache")
    assert torch.equal(tensor, wanted)
    address = tensor.data_ptr()
    glake.pause("cache", to="discard")
    glake.resume("cache")
    tensor.copy_(wanted)
    assert tensor.data_ptr() == address and torch.equal(tensor, wanted)


def check_an_allocation_in_a_paused_region_is_refused() -> None:
    with glake.region("resting"):
        tensor = torch.ones(5 * MIB, dtype=torch.uint8, device=DEVICE)
    glake.pause("resting")
    with glake.region("resting"):
        error = raises(RuntimeError, lambda: torch.ones(5 * MIB, dtype=torch.uint8, device=DEVICE))
    assert "resting" in str(error), error
    glake.resume("resting")
    assert int(tensor.long().sum()) == 5 * MIB


def check_training_goes_on_after_a_pause() -> None:
    torch.manual_seed(0)
    with glake.region("training"):
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = numbers(64 * 1024).view(64, 1024)
    losses: list[list[float]] = []
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for paused in (False, True):
        with torch.no_grad():
            model.load_state_dict(state)
        optimizer.state.clear()
        told = []
        for _ in range(4):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with glake.region("training"):  # the optimizer's state is made at the first step
                optimizer.step()
            told.append(loss.item())
            if paused:
                glake.pause("training")
                glake.resume("training")
        losses.append(told)
    assert losses[0] == losses[1], losses


def check_a_graph_over_a_region_replays() -> None:
    with glake.region("graphed"):
        x = numbers(4 * MIB)
        y = torch.empty_like(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.mul(x, 3, out=y)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(x, 3, out=y)
    wanted = x * 3
    for _ in range(3):
        glake.pause("graphed")
        glake.resume("graphed")
        y.zero_()
        graph.replay()
        assert torch.equal(y, wanted)


def check_two_regions_hand_over_at_once() -> None:
    settle()
    kept = {}
    for seed, name in enumerate(("trainer", "rollout")):
        with glake.region(name):
            kept[name] = filled(200 * MIB, seed)
    glake.pause("rollout")
    for out, back in [("trainer", "rollout"), ("rollout", "trainer")] * 3:
        with ThreadPoolExecutor() as at_once:
            leaving, coming = at_once.submit(glake.pause, out), at_once.submit(glake.resume, back)
            assert leaving.result() > 0 and coming.result() > 0
    glake.resume("rollout")
    for seed, name in enumerate(("trainer", "rollout")):
        assert torch.equal(kept[name], filled(200 * MIB, seed)), name


if __name__ == "__main__":
    main(globals())
