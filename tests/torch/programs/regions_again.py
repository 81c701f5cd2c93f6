"""One region's context is used again, nested, as a decorator and by two threads."""

import threading

import torch

import glake

context = glake.region("again", budget="64MiB")
both, made = threading.Barrier(2), []


def make():
    made.append(torch.ones(1 << 16))


def work():
    with context:
        both.wait()
        make()
        both.wait()


for _ in range(2):
    with context:
        make()
with context, glake.region("inner"), context:
    make()
context(make)()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
after = torch.ones(1 << 16)
assert {r.name: (r.blocks, r.budget) for r in glake.regions()} == {"again": (6, 64 << 20)}
try:
    with context:
        raise KeyError
except KeyError:
    pass
try:
    with context:
        torch.ones(65 << 18)
except (glake.OutOfMemory, RuntimeError) as error:
    assert "again" in str(error), error
else:
    raise AssertionError("the budget is gone")
