"""KVCache and VirtualBuffer with PyTorch's CUDA tensors: streams, graphs, copies of tensors."""

import copy

import torch

import glake
from glake import _C, simcuda
from glake.dryrun import numbers

numbers.install()  # kernels compute
PAGE = 2 << 20
SHAPE = {"layers": 2, "heads": 4, "head_dim": 64, "tokens": 4096, "sequences": 4}


def write(cache: glake.KVCache, sequence: int, first: int, last: int, value: float) -> None:
    for layer in range(cache.layers):
        for of in (cache.keys, cache.values):
            of(layer)[sequence, first:last] = value


def holds(cache: glake.KVCache, sequence: int, first: int, last: int, value: float) -> bool:
    parts = [part[first:last] for layer in (0, 1) for part in cache.view(sequence, layer)]
    return all(bool((part == value).all()) for part in parts)


def sequences_and_forks(layout: str) -> None:
    cache = glake.KVCache(**SHAPE, dtype=torch.float16, layout=layout)
    one = cache.add(3000)
    write(cache, one, 0, 3000, 1)
    two = cache.fork(one)
    cache.grow(two, 3100)
    write(cache, two, 3000, 3100, 2)
    cache.cut(one, 100)
    cache.grow(one, 400)
    write(cache, one, 100, 400, 3)
    assert cache.keys(0).is_cuda and cache.keys(0).stride(-1) == 1
    assert holds(cache, two, 0, 3000, 1) and holds(cache, two, 3000, 3100, 2)
    assert holds(cache, one, 0, 100, 1) and holds(cache, one, 100, 400, 3)
    keys = cache.view(one, 1)[0]
    assert torch.equal(copy.deepcopy(keys), keys)
    del keys
    cache.free()


def host_and_back(stream: torch.cuda.Stream | None) -> None:
    """Nobody waits for the copies: what takes the pages and what reads them is ordered after."""
    cache = glake.KVCache(**SHAPE, dtype=torch.float16, value_dim=32, stream=stream or 0)
    one = cache.add(4096)
    with torch.cuda.stream(stream):
        for turn in range(1, 4):
            write(cache, one, 0, 4096, turn)
            cache.offload(one)
            other = torch.full((4096 * 2 * 4 * 96,), -turn, dtype=torch.float16, device="cuda")
            cache.load(one)
            assert holds(cache, one, 0, 4096, turn) and bool((other == -turn).all())
            del other
    if stream is not None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            try:
                cache.offload(one)
            except glake.errors.InvalidArgument as error:
                assert "before the capture" in str(error)
            else:
                raise AssertionError("a capture took an offload")
        del graph
    cache.remove(one)
    cache.free()


def pages_and_tensors_take_turns() -> None:
    buffer = glake.reserve("1GiB")
    side = torch.cuda.Stream()
    for value in range(5):
        with torch.cuda.stream(side):
            buffer.back(0, 8 * PAGE, stream=side)
            pages = buffer.tensor(torch.uint8, [8 * PAGE])
            pages.fill_(value)
            buffer.unback(0, 8 * PAGE, stream=side)
        tensor = torch.full((8 * PAGE,), 100 + value, dtype=torch.uint8, device="cuda")
        assert bool((tensor == 100 + value).all())
        del tensor, pages
    buffer.free()


def graphs() -> None:
    cache = glake.KVCache(**SHAPE, dtype=torch.float32)
    one = cache.add(10)
    keys = cache.keys(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.grow(one, 20)
        keys[one, 10:20] = 7.0
        made = glake.KVCache(**SHAPE, dtype=torch.float32)
        made.keys(1)
        del made  # freed once nothing is captured
    graph.replay()
    torch.cuda.synchronize()
    assert bool((keys[one, 10:20] == 7).all())
    del keys, graph
    cache.free()
    glake.reserve(1).free()
    assert glake.stats()["glake.virtual_ranges"] == 0


for way in ("tokens", "layers"):
    sequences_and_forks(way)
for side in (None, torch.cuda.Stream()):
    host_and_back(side)
pages_and_tensors_take_turns()
graphs()
torch.cuda.synchronize()
_C.check(0)
assert glake.stats()["glake.virtual_backed_bytes"] == 0
assert simcuda.violations() == []
print("keys and values stay apart")
