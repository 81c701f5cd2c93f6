"""glake's recording of stacks beside torch's: each shows its own stacks, whichever came last.

GLAKE_DEBUG=guard,trace,sync is on, so glake takes stacks from the first block on.
"""

import ctypes
import json

import torch

import glake

MIB = 1 << 20


def made_before():
    return torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")


def made_with_torch():
    return torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")


def made_with_glake():
    return torch.empty(7 * MIB, dtype=torch.uint8, device="cuda")


def made_afterwards():
    return torch.empty(1000, dtype=torch.uint8, device="cuda")


def names(segments):
    """The functions made_* in the stacks of the live blocks."""
    live = [b for s in segments for b in s["blocks"] if b["state"] == "active_allocated"]
    text = json.dumps(live)
    return {name for name in globals() if name.startswith("made_") and f'"{name}"' in text}


def overrun(block):
    """Writes four bytes too many."""
    source = (ctypes.c_char * (block.nbytes + 4))(*b"\1" * (block.nbytes + 4))
    copy = ctypes.CDLL("libcudart.so.13").cudaMemcpy
    assert copy(ctypes.c_void_p(block.data_ptr()), source, ctypes.c_size_t(len(source)), 1) == 0


def finding():
    try:
        glake.check()
    except glake.Corrupted as error:
        return str(error)
    raise AssertionError("the overrun was not found")


# Stacks of glake's are no stacks for torch.
before = made_before()
assert names(torch.cuda.memory_snapshot()) == set()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    pooled = made_before()
assert names(pool.snapshot()) == set()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    made_before().zero_()
assert names(torch.cuda.memory_snapshot(graph.pool())) == set()

torch.cuda.memory._record_memory_history(stacks="python")
with_torch = made_with_torch()
glake.record_memory_history()
with_glake = made_with_glake()
snapshot = torch.cuda.memory._snapshot()
assert names(snapshot["segments"]) == {"made_with_torch"}, names(snapshot["segments"])
assert "made_with_torch" in json.dumps(snapshot["device_traces"][0])
found = names(glake.snapshot()["segments"])
assert found == {"made_before", "made_with_glake"}, found

# In findings a stack is text, whoever has taken it.
for stacks in ("python", "all"):
    torch.cuda.memory._record_memory_history(stacks=stacks)
    small = made_afterwards()
    overrun(small)
    text = finding()
    assert "allocated at:" in text and "made_afterwards" in text, text
    assert "recorders.py:" in text and "glake_malloc" not in text, text
torch.cuda.memory._record_memory_history(enabled=None)
small = made_afterwards()
overrun(small)
text = finding()
assert "allocated at:" in text and "recorders.py:" in text, text

torch.cuda.memory._record_memory_history(stacks="python")
large = made_with_torch()
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    raise AssertionError("more memory than there is")
except torch.OutOfMemoryError as error:
    text = str(error)
assert "Largest holders:" in text.splitlines(), text
assert "blocks allocated at\n    " in text and "made_with_torch" in text, text
print("ok")
