"""Copies of paused memory are refused: at either end, small and large, in batches, to files."""

import os
import tempfile

import numpy
import torch

import glake
import glake.transfer as t

with glake.region("weights"):
    large, small = torch.ones(1 << 20), torch.ones(16)
other, few = torch.zeros(1 << 20), torch.zeros(16)
host, little = t.pinned((1 << 20,), torch.float32), t.pinned((16,), torch.float32)
host.zero_(), little.zero_()
array = numpy.zeros(1 << 20, dtype=numpy.float32)
pool = t.Offloader("64MiB")
path = os.path.join(tempfile.mkdtemp(), "file")
raw = t.Raw(large.data_ptr(), large.nbytes, 0)
within = large[1 << 19 :]
rows = numpy.array([[host.data_ptr(), large.data_ptr(), 64]], dtype=numpy.uint64)
used = {
    "to pinned": lambda: t.copy(host, large),
    "from pinned": lambda: t.copy(large, host),
    "plain": lambda: t.copy(large, host, direct=True),
    "to the GPU itself": lambda: t.copy(other, large),
    "to pageable": lambda: t.copy(array[1 << 19 :], within),
    "small": lambda: t.copy(little, small),
    "into small": lambda: t.copy(small, little),
    "unordered": lambda: t.copy(few, small, t.UNORDERED),
    "a batch": lambda: t.copy_batch([(host, other), (small, little)]),
    "rows": lambda: t.default_engine().copy_rows(rows),
    "gathered": lambda: t.gather(host, large.view(64, -1)),
    "scattered": lambda: t.scatter(large.view(64, -1), host),
    "raw": lambda: t.copy(host, raw),
    "unknown raw": lambda: t.copy(host, t.Raw(raw.address, raw.bytes)),
    "written": lambda: t.write_file(path, large),
    "read": lambda: t.read_file("/dev/zero", within),
    "offloaded": lambda: pool.offload([other, large]),
    "fetched": lambda: pool.prefetch([large]),
    "alternated": lambda: pool.alternate([layer]).__enter__(),
    "registered": lambda: t.register_host(large),
}
with glake.region("weights"):
    layer = torch.nn.Linear(8, 8)
t.copy(host, other).wait()  # which opens the engine
for to in ("host", "discard"):
    glake.pause("weights", to=to)
    for name, call in used.items():
        try:
            call()
        except glake.RegionPaused as error:
            for part in ('lies in region "weights" on cuda:0', 'glake.resume("weights")'):
                assert part in str(error), (name, error)
        else:
            raise AssertionError(name)
    assert pool.used == 0 and not os.path.exists(path)
    t.copy(few, little).wait()  # others go on
    glake.resume("weights")
    if to == "host":
        assert bool((large == 1).all()) and bool((small == 1).all())
assert not other.any() and not host.any() and not array.any() and not little.any()
large.fill_(2)
t.copy(host, large).wait()
pool.offload([large]).wait()
assert bool((host == 2).all()) and pool.used == large.nbytes
