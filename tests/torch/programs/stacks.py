"""Stacks of allocations by threads and by backward."""

import threading

import torch

import glake

glake.record_memory_history()


def in_a_thread():
    for _ in range(200):
        torch.randn(64, 64, requires_grad=True).exp().sum().backward()


threads = [threading.Thread(target=in_a_thread) for _ in range(3)]
for t in threads:
    t.start()
in_a_thread()
for t in threads:
    t.join()
trace = glake.snapshot()["device_traces"][0]
with_stack = [e for e in trace if e["frames"]]
assert any(f["name"] == "in_a_thread" for e in with_stack for f in e["frames"])
glake.record_memory_history(None)
