"""glake.enable(), twice, before torch is imported (argument: its options, as JSON)."""

import json
import sys

import glake

options = json.loads(sys.argv[1])
glake.enable(**options)
glake.enable(**options)
import torch  # noqa: E402

from glake.allocator.torch import mode  # noqa: E402

torch.ones(3)
from glake import _C  # noqa: E402

print(mode(), _C.options()[1]["value"])
