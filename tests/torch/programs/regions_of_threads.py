"""Each thread has a region of its own."""

import threading

import torch

import glake

made, both = {}, threading.Barrier(2)


def work(name):
    with glake.region(name):
        both.wait()
        made[name] = [torch.ones(1 << 16) for _ in range(8)]
        both.wait()


threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert {r.name: r.blocks for r in glake.regions()} == {"a": 8, "b": 8}
glake.pause("a")
assert all(bool((t == 1).all()) for t in made["b"])
glake.resume("a")
assert all(bool((t == 1).all()) for t in made["a"])
