"""Wrong arguments of every call raise errors that name them."""

import numpy as np
import pytest
import torch

from glake import _C, errors
from glake import transfer as t

size = 1 << 20
gpu, data = t.Raw(_C.malloc(size, 0, 0), size, 0), np.zeros(size, np.uint8)
handle = t.copy(gpu, data)
assert handle.wait(float("inf")) is handle and handle.wait(1e308) is handle
assert t.copy(gpu, data).wait(np.float32(60)).done()
dead = dict.fromkeys(("s0>u0", "s0>u1", "s1>u2", "s1>u3"), 0.0)
plan = t.explain(src="cpu", dst="cuda:0", nbytes=size, scales=dead)
assert not plan.paths and plan.rate == plan.bound == 0 and plan.expected_us is None
assert "every way is dead" in str(plan) and "cpu:0/pcie>u0 is dead" in str(plan)
registered = np.zeros(size, np.uint8)
pinned = t.register_host(registered)
weight = torch.nn.Linear(512, 512).weight
if torch.version.cuda is None:
    t.register_host(weight).unregister()
offloader = t.Offloader("8MiB")
way = {"src": "cpu", "dst": "cuda:0", "nbytes": 1}
offloader.offload([]), offloader.prefetch([]), offloader.offload([5, None])
refused = {
    "seconds": [
        lambda: handle.wait("x"),
        lambda: pinned.wait("x"),
        lambda: handle.wait(-1),
        lambda: offloader.offload([]).wait("x"),
    ],
    "pair": [
        lambda: t.copy_batch(None),
        lambda: t.copy_batch([(gpu, data, 3)]),
        lambda: t.copy_batch([gpu]),
    ],
    "exclude": [
        lambda: t.explain(**way, exclude=[99]),
        lambda: t.explain(**way, exclude=["g1"]),
        lambda: t.explain(**way, exclude=5.5),
        lambda: t.bound("dgx1v", dst="cuda:0", src="cpu", exclude=[-1]),
    ],
    "scales|edge": [
        lambda: t.explain(**way, scales=5),
        lambda: t.explain(**way, scales={"s0>u0": "x"}),
    ],
    "take a preset": [lambda: t.explain(**way, platform=5), lambda: t.Engine(5)],
    "dtype": [lambda: t.pinned(4, "nope")],
    "shape": [lambda: t.pinned(2.5), lambda: t.pinned(None)],
    "torch tensors": [lambda: t.to(data, "cpu")],
    "device": [
        lambda: t.to(weight, "nonsense"),
        lambda: t.to(weight, "meta"),
        lambda: t.to(weight, None),
    ],
    "no tensors": [
        lambda: offloader.offload(5),
        lambda: offloader.offload(None),
        lambda: offloader.prefetch(None),
    ],
    "none is on a GPU": [lambda: offloader.prefetch(torch.zeros(9))],
    "read-only": [
        lambda: t.register_host(bytes(100)),
        lambda: t.register_host(np.broadcast_to(registered, (1, size))),
    ],
}
for match, calls in refused.items():
    for call in calls:
        with pytest.raises(errors.InvalidArgument, match=match):
            call()
if not torch.cuda.is_available():
    for device in ("cuda", "cuda:0", "cuda:55", 0):
        with pytest.raises(errors.InvalidDevice, match="copy"):
            t.to(weight, device)
