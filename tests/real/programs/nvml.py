"""nvidia-ml-py and glake's discovery see the preset."""

import os
import sys

import pynvml

from glake import platform_file
from glake.transfer.topology.discovery import discover
from glake.transfer.topology.nvml import Nvml

preset = platform_file.load_platforms()[sys.argv[1]]
facts = Nvml().read()
assert len(facts.gpus) == preset.gpus
links = {(edge.source, edge.target): edge.gb_per_s for edge in preset.edges}
found = {(e.source, e.target): e.gb_per_s for e in discover(os.environ).platform.edges}


def is_nvlink(ends):
    return all(end[0] in "gN" for end in ends)


mine, theirs = ({k for k in d if is_nvlink(k)} for d in (found, links))
assert mine == theirs, mine ^ theirs
for ends in mine:
    assert abs(found[ends] / links[ends] - 1) < 0.3, (ends, found[ends], links[ends])
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(1)
assert sys.argv[1] in pynvml.nvmlDeviceGetName(handle)
assert pynvml.nvmlDeviceGetUUID(handle).startswith("GPU-676c616b")
assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == 3 << 30
assert pynvml.nvmlDeviceGetPciInfo(handle).busId == "00000000:02:00.0"
same = pynvml.nvmlDeviceGetHandleByPciBusId("0000:02:00.0")
assert pynvml.nvmlDeviceGetIndex(same) == 1
try:
    pynvml.nvmlDeviceGetTemperature(handle, 0)
except pynvml.NVMLError_NotSupported:
    pass
else:
    raise AssertionError("a temperature nobody measured")
