"""Virtual buffers and caches of keys and values, with real kernels."""

from __future__ import annotations

import torch
from checks import DEVICE, MIB, main

import glake

PAGE = 2 * MIB


def check_sequences_and_forks() -> None:
    for layout in ("tokens", "layers"):
        with glake.KVCache(
            8, 8, 128, torch.float16, tokens=100_000, sequences=8, layout=layout, device=DEVICE
        ) as cache:
            one = cache.add(3000)
            for layer in range(8):
                cache.keys(layer)[one, :3000] = layer + 1
            two = cache.fork(one)
            cache.grow(two, 3100)
            cache.keys(5)[two, 3000:3100] = 50
            cache.cut(one, 100)
            cache.grow(one, 400)
            cache.keys(5)[one, 100:400] = 60
            assert (cache.view(two, 5)[0][:3000] == 6).all()
            assert (cache.view(two, 5)[0][3000:] == 50).all()
            assert (cache.view(one, 5)[0][:100] == 6).all()
            assert (cache.view(one, 5)[0][100:] == 60).all()


def check_sequences_go_to_the_host_and_back() -> None:
    side = torch.cuda.Stream(DEVICE)
    for stream in (torch.cuda.current_stream(DEVICE), side):
        with (
            torch.cuda.stream(stream),
            glake.KVCache(
                8, 8, 128, torch.float16, tokens=100_000, value_dim=64, device=DEVICE, stream=stream
            ) as cache,
        ):
            one = cache.add(20_000)
            for turn in range(1, 6):
                for layer in range(8):
                    for part in cache.view(one, layer):
                        part.fill_(turn * 10 + layer)
                cache.offload(one)
                other = torch.full((200 * MIB,), turn, dtype=torch.uint8, device=DEVICE)
                cache.load(one)
                for layer in range(8):
                    assert all((part == turn * 10 + layer).all() for part in cache.view(one, layer))
                assert (other == turn).all()
                del other, part


def check_attention_reads_strided_keys() -> None:
    torch.manual_seed(0)
    with glake.KVCache(4, 8, 128, torch.float16, tokens=100_000, device=DEVICE) as cache:
        one = cache.add(777)
        keys, values = (torch.randn(777, 8, 128, device=DEVICE, dtype=torch.float16) for _ in "kv")
        cache.keys(2)[one, :777] = keys
        cache.values(2)[one, :777] = values
        query = torch.randn(1, 8, 16, 128, device=DEVICE, dtype=torch.float16)
        attention = torch.nn.functional.scaled_dot_product_attention
        found = attention(query, *(part.transpose(0, 1)[None] for part in cache.view(one, 2)))
        wanted = attention(query, keys.transpose(0, 1)[None], values.transpose(0, 1)[None])
        torch.testing.assert_close(found, wanted)
        del found, wanted


def check_pages_and_tensors_take_turns() -> None:
    buffer = glake.reserve("64GiB", DEVICE)
    streams = [torch.cuda.Stream(DEVICE) for _ in range(3)]
    for turn in range(60):
        stream = streams[turn % 3]
        with torch.cuda.stream(stream):
            first = turn % 7
            buffer.back(first * PAGE, (first + 32) * PAGE, stream=stream)
            pages = buffer.tensor(torch.int32, [8 * PAGE], begin=first * PAGE).fill_(turn)
            assert (pages == turn).all()
            buffer.unback(first * PAGE, (first + 32) * PAGE, stream=stream)
            del pages
        tensor = torch.full((8 * PAGE,), -turn, dtype=torch.int32, device=DEVICE)
        assert (tensor == -turn).all()
        del tensor
    torch.cuda.synchronize()
    buffer.free()


def check_shared_pages_show_writes_of_earlier_work() -> None:
    with glake.reserve("1GiB", DEVICE) as buffer:
        buffer.back(0, 4 * PAGE)
        buffer.alias(100 * PAGE, buffer, 0, 4 * PAGE)
        ends = [buffer.tensor(torch.int32, [2 * MIB], begin=at) for at in (0, 100 * PAGE)]
        for turn in range(50):
            ends[turn % 2].fill_(turn)
            assert (ends[(turn + 1) % 2] == turn).all()
        del ends


def check_a_graph_keeps_its_addresses() -> None:
    with glake.KVCache(2, 4, 64, torch.float32, tokens=10_000, device=DEVICE) as cache:
        one = cache.add(100)
        keys = cache.keys(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            keys[one, :100] = keys[one, :100] + 1
        cache.grow(one, 9_000)
        keys[one, :100] = 0
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        assert (keys[one, :100] == 5).all()
        del keys, graph


if __name__ == "__main__":
    main(globals())
