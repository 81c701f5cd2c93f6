"""A cache of keys and values whose sequences grow in place, and share a common beginning.

GLAKE_SIM_MEMORY=1GiB python examples/kv_cache.py
"""

import torch

import glake

MIB = 1 << 20

glake.enable(driver="sim")

# Addresses for 16 sequences of 100,000 tokens, 48 GiB in all. They take no memory.
cache = glake.KVCache(
    layers=4, heads=8, head_dim=128, dtype=torch.float32, tokens=100_000, sequences=16
)
system = cache.add(tokens=1_000)
keys = cache.keys(layer=0)
keys[system, :1_000] = torch.randn(1_000, 8, 128)
print(f"1,000 tokens: {cache.backed // MIB} MiB")

talks = [cache.fork(system) for _ in range(4)]  # each begins with the same 1,000 tokens
for talk in talks:
    cache.grow(talk, 1_100)
    keys[talk, 1_000:1_100] = talk
held = glake.stats()["glake.virtual_backed_bytes"] - glake.stats()["glake.virtual_shared_bytes"]
print(f"five sequences of 5,400 tokens: {held // MIB} MiB, {cache.backed // MIB} without sharing")
assert held < cache.backed
assert torch.equal(keys[talks[0], :1_000], keys[system, :1_000])
assert keys[talks[3], 1_099, 0, 0] == talks[3]

cache.offload(talks[2])  # its own tokens go to host memory; those that it shares stay
print(f"{cache.offloaded // MIB} MiB in host memory")
cache.load(talks[2])
assert keys[talks[2], 1_099, 0, 0] == talks[2]

for sequence in (system, *talks):
    cache.remove(sequence)
assert glake.stats()["glake.virtual_backed_bytes"] == 0  # tensors can have all of it now
