"""The real torch_memory_saver with glake's hook: its signatures, regions, and a graph's memory."""

import gc
import inspect
import sys
from pathlib import Path

import torch
import torch_memory_saver

import glake

MIB = 1 << 20
saver = torch_memory_saver.torch_memory_saver
assert saver.hook_mode == "glake", "the package is not hooked"

stored = Path(sys.argv[1]).read_text().splitlines()[1:]
theirs = torch_memory_saver.TorchMemorySaver
for line in stored:
    name, _, parameters = line.partition(" ")
    attribute = inspect.getattr_static(theirs, name)
    if parameters == "property":
        assert isinstance(attribute, property), line
    else:
        plain = inspect.signature(attribute).parameters.values()
        bare = str(inspect.Signature([p.replace(annotation=p.empty) for p in plain]))
        assert bare == parameters, (bare, line)
named = {line.split()[0] for line in stored}
public = {name for name in vars(theirs) if not name.startswith("_")}
assert public == named, f"calls that the hook does not know: {public ^ named}"


def marked(mark):
    return torch.full((8 * MIB,), mark, dtype=torch.uint8).cuda()


with saver.region("weights", enable_cpu_backup=True):
    weights = marked(7)
    with saver.disable():
        outside = marked(8)
source = torch.zeros(8 * MIB, dtype=torch.uint8).pin_memory()
graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
    inside = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    inside.copy_(source, non_blocking=True)
torch.cuda.synchronize()
places = [weights.data_ptr(), inside.data_ptr()]

before = torch.cuda.memory_reserved()
saver.pause("graph")
assert before - torch.cuda.memory_reserved() >= 8 * MIB
saver.pause("graph")
saver.pause()
assert before - torch.cuda.memory_reserved() >= 16 * MIB
stats = glake.stats()
assert stats["glake.paused_bytes"] == before - torch.cuda.memory_reserved()
assert stats["glake.integrations.memory_saver.paused_bytes"] == stats["glake.paused_bytes"]
assert stats["glake.host.allocated_bytes.current"] >= 24 * MIB  # the source, and paused memory
assert bool((outside.cpu() == 8).all())
filler = torch.empty(before - torch.cuda.memory_reserved(), dtype=torch.uint8, device="cuda")
del filler
saver.resume()
assert places == [weights.data_ptr(), inside.data_ptr()]
assert bool((weights.cpu() == 7).all())
for value in (3, 9):
    source.fill_(value)
    graph.replay()
    assert bool((inside.cpu() == value).all())

# A graph that has ended, in use or paused, is forgotten, and the others go on.
for paused in (False, True):
    if paused:
        saver.pause("graph")
    graph.reset()
    del inside
    gc.collect()
    for _ in range(2):
        saver.pause()
        assert glake.stats()["glake.paused_bytes"] == 8 * MIB
        saver.resume()
    assert bool((weights.cpu() == 7).all())
    with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
        inside = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        inside.copy_(source, non_blocking=True)
    torch.cuda.synchronize()

# Memory runs out on resume. What does not fit stays paused and keeps its bytes.
saver.pause("weights")
torch.cuda.empty_cache()
free, total = torch.cuda.mem_get_info()
hog = torch.empty(free - 2 * MIB, dtype=torch.uint8, device="cuda")
try:
    saver.resume("weights")
    raise AssertionError("there was no room")
except glake.OutOfMemory as error:
    assert "torch_memory_saver weights" in str(error), error
del hog
saver.resume("weights")
assert bool((weights.cpu() == 7).all())
print("saved")
