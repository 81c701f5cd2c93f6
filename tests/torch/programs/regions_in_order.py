"""Regions end in the order in which they began, or say so."""

import asyncio
import threading

import torch

import glake


def where(tensor):
    (name,) = [r.name for r in glake.regions() if r.live == tensor.nbytes] or ["none"]
    return name


async def task(name, size, begun, go_on, told):
    try:
        with glake.region(name):
            begun.set()
            await go_on.wait()
            made = torch.ones(size)
            told[name] = where(made)
    except glake.RegionRefused as error:
        told[name] += f": {error}"


async def both():
    begun, over, told = asyncio.Event(), asyncio.Event(), {}
    first = asyncio.create_task(task("a", 1 << 16, asyncio.Event(), begun, told))
    await asyncio.sleep(0)
    second = asyncio.create_task(task("b", 1 << 17, begun, over, told))
    await first
    between = torch.ones(1 << 18)
    assert where(between) == "b"
    del between
    over.set()
    await second
    return told


told = asyncio.run(both())
assert told["b"] == "b", told
assert told["a"].startswith("b: region 'a' ends while 'b'") and "await" in told["a"], told
after = torch.ones(1 << 19)
assert where(after) == "none"  # all have ended

opened = glake.region("c")
opened.__enter__()
raised = []


def leave():
    try:
        opened.__exit__(None, None, None)
    except glake.RegionRefused as error:
        raised.append(str(error))


thread = threading.Thread(target=leave)
thread.start()
thread.join()
assert raised and "another thread" in raised[0], raised
assert where(torch.ones(1 << 20)) == "c"
opened.__exit__(None, None, None)
assert where(torch.ones(1 << 21)) == "none"
