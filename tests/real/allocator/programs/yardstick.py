"""Runs jobs one after another, and prints for each the allocator's memory and the driver calls.

yardstick.py [--trace FOLDER] prints {job: {peak_reserved, capacity, late, steps}}, where a step is
{driver call: [count, microseconds]}. With --trace (under glake) it also records FOLDER/JOB.trace.
It runs in phantom memory, where values are zero, so nothing here depends on one.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import random
from pathlib import Path

import torch
from torch import nn

from glake import simcuda
from glake.dryrun.child import COUNTED

MIB = 1 << 20
JOBS = {}
NAMES = (*COUNTED, "cuPointerGetAttribute", "cuStreamIsCapturing", "cuStreamGetCaptureInfo")


def job(late=True, capacity_mib=None):
    """late: work completes only when the host waits for it; else at once."""
    return lambda run: JOBS.setdefault(run.__name__, (run, late, capacity_mib)) and run


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def model(width=1024, layers=6):
    return nn.Sequential(*(Block(width) for _ in range(layers))).cuda()


def train(net, lengths, batch=8, width=1024):
    adam = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for length in lengths:
        yield
        net(torch.empty(batch, length, width, device="cuda")).square().mean().backward()
        adam.step()
        adam.zero_grad()


@job()
def training():
    yield from train(model(), [512] * 6)


@job()
def varying_lengths():
    dice = random.Random(1)
    yield from train(model(), [dice.randrange(64, 1024) for _ in range(14)])


@job(capacity_mib=2900)
def varying_lengths_in_little_memory():
    dice = random.Random(1)
    yield from train(model(), [dice.randrange(64, 1024) for _ in range(14)])


def copies_on_a_side_stream(synchronize, steps=8):
    dice = random.Random(2)
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    net = model(layers=2)
    for step in range(steps):
        yield
        for _ in range(6):
            with torch.cuda.stream(side):
                batch = torch.empty(dice.randrange(1, 24) * MIB // 2, device="cuda")
            main.wait_stream(side)
            batch.record_stream(main)
            net(batch[: 1024 * 1024].view(1024, 1024)) if batch.numel() >= MIB else batch.mul(2)
            del batch
        if synchronize and step % 3 == 2:
            torch.cuda.synchronize()


@job(late=False)
def side_streams():
    yield from copies_on_a_side_stream(synchronize=True)


@job()
def side_streams_late():
    """The host waits for nothing, because a trace does not record its waits."""
    yield from copies_on_a_side_stream(synchronize=False)


@job()
def many_small_tensors():
    dice = random.Random(3)
    held = []
    for _ in range(4):
        yield
        for _ in range(3000):
            held.append(torch.empty(dice.choice((3, 200, 4000, 70_000, 250_000)), device="cuda"))
            if len(held) > 1500:
                held.pop(dice.randrange(len(held)))


@job()
def generation():
    """A cache of keys and values that grows by concatenation, as in naive decoding."""
    layers = [torch.empty(16, 128, 16, 128, device="cuda") for _ in range(8)]
    for _ in range(40):
        yield
        new = torch.empty(16, 1, 16, 128, device="cuda")
        layers = [torch.cat((layer, new), dim=1) for layer in layers]


@job()
def experts():
    """Each expert gets as many tokens as a router might send."""
    dice = random.Random(4)
    nets = [model(512, 1) for _ in range(8)]
    params = [p for net in nets for p in net.parameters()]
    adam = torch.optim.Adam(params, lr=1e-4)
    for _ in range(8):
        yield
        x = torch.empty(8192, 512, device="cuda", requires_grad=True)
        cuts = sorted(dice.randrange(1, 8192) for _ in range(7))
        parts = torch.tensor_split(x, cuts)
        sum(net(part).sum() for net, part in zip(nets, parts, strict=True)).backward()
        adam.step()
        adam.zero_grad()


def clean():
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_snapshot()


class Ballast:
    """Leaves the allocator `capacity` bytes of the device."""

    def __init__(self, capacity):
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._at = ctypes.c_uint64()
        free, _ = torch.cuda.mem_get_info()
        size = ctypes.c_size_t(free - capacity)
        assert self._driver.cuMemAlloc_v2(ctypes.byref(self._at), size) == 0

    def drop(self):
        assert self._driver.cuMemFree_v2(self._at) == 0


@contextlib.contextmanager
def recorded(path):
    if path is None:
        yield
        return
    import glake

    with glake.record_trace(path):
        yield


def books():
    return {name: (simcuda.calls(name), simcuda.cost_us(name)) for name in NAMES}


def measure(run):
    steps, before = [], books()
    for _ in run():
        now = books()
        steps.append({n: [now[n][0] - b[0], now[n][1] - b[1]] for n, b in before.items()})
        before = now
    now = books()
    steps.append({n: [now[n][0] - b[0], now[n][1] - b[1]] for n, b in before.items()})
    return [{n: pair for n, pair in step.items() if pair[0]} for step in steps]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    options = parser.parse_args()
    told = {}
    for name in options.jobs:
        run, late, capacity_mib = JOBS[name]
        simcuda.configure("complete_after", "-1" if late else "0")
        torch.manual_seed(0)
        clean()
        # With --trace the job has memory to spare, because held memory is compared.
        little = capacity_mib is not None and options.trace is None
        ballast = Ballast(capacity_mib * MIB) if little else None
        with recorded(options.trace and options.trace / f"{name}.trace"):
            steps = measure(run)
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()
        reserved = torch.cuda.max_memory_reserved()
        told[name] = {"peak_reserved": reserved, "late": late, "steps": steps}
        told[name]["capacity"] = None if capacity_mib is None else capacity_mib * MIB
        clean()
        if ballast is not None:
            ballast.drop()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
