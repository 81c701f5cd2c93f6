"""Copies 128 MiB of host memory to GPU 0. Its stretches lie on the given NUMA nodes, in turn."""

import json
import sys

from glake import _C, simcuda
from glake import transfer as t

size, nodes = 128 << 20, json.loads(sys.argv[1])
simcuda.configure("phantom", 1)
with t.Engine(sys.argv[2] if len(sys.argv) > 2 else None):
    host = _C.host_malloc(size)
    step = size // len(nodes)
    for at, node in enumerate(nodes):
        simcuda.place_host(host + at * step, step, node)
    result = t.copy(t.Raw(_C.malloc(size), size, 0), t.Raw(host, size)).wait().result()
    print(json.dumps([sorted(path for path, *_ in result.paths), round(result.seconds * 1e6)]))
