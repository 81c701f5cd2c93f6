"""The topology in force is that of the driver (argument: what opens it, driver or engine)."""

import sys

import numpy as np

from glake import _C
from glake import transfer as t
from glake.transfer import topology

_C.configure("DRIVER", "sim:dgx1v")
if sys.argv[1] == "driver":
    _C.device_count()
else:
    t.default_engine()
print(topology.current().name, t.explain(src="cpu", dst="cuda:0", nbytes=1 << 30).platform)
block = _C.malloc(64, 0, 0)
t.copy(t.Raw(block, 64, 0), np.ones(64, np.uint8)).wait()
print(t.default_engine().topology.name)
