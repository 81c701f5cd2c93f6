"""NVIDIA's own Python objects (cuda.core): code of each kind, launches, a graph, virtual memory."""

import sys
from pathlib import Path

import numpy as np
from cuda.core import (
    Device,
    DeviceMemoryResource,
    LaunchConfig,
    Linker,
    LinkerOptions,
    ObjectCode,
    Program,
    ProgramOptions,
    VirtualMemoryResource,
    launch,
)

HERE = Path(__file__).parent
SMALL = LaunchConfig(grid=4, block=128)

devices = [Device(0), Device(1)]
codes = [ObjectCode.from_ptx((HERE / "scale.ptx").read_bytes())]
devices[0].set_current()
codes.append(Linker(*codes, options=LinkerOptions(arch="sm_90")).link("cubin"))
scales = [code.get_kernel("scale") for code in codes]
source = (HERE / "fill.cu").read_text()
made = Program(source, "c++", ProgramOptions(arch="sm_90")).compile(
    "cubin", name_expressions=("clear<float>",)
)
for device in devices:  # a kernel is of no context
    device.set_current()
    stream = device.create_stream()
    memory = device.allocate(1 << 20, stream=stream)
    for scale in scales:
        launch(stream, SMALL, scale, memory, np.float32(2))
    launch(stream, SMALL, made.get_kernel("fill"), memory, np.int32(1))
    launch(stream, SMALL, made.get_kernel("clear<float>"), memory)
    done = stream.record()
    done.sync()
    assert done.is_done
    memory.close(stream)
    for resource in (VirtualMemoryResource(device), DeviceMemoryResource(device)):
        buffer = resource.allocate(4 << 20, stream=stream)
        assert buffer.size == 4 << 20 and buffer.is_device_accessible
        buffer.close(stream)
    building = device.create_graph_builder().begin_building()
    launch(building, SMALL, scales[0], np.int64(0), np.float32(2))
    graph = building.end_building().complete()
    graph.launch(stream)
    stream.sync()
assert scales[0].attributes.max_threads_per_block == 1024
assert scales[0].occupancy.max_active_blocks_per_multiprocessor(128, 0) == 16
print("cuda.core", *(device.compute_capability for device in devices), file=sys.stderr)
