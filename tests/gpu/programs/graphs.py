"""CUDA graphs: captured memory stays the graph's own beside stitching, reuse and empty_cache."""

from __future__ import annotations

import threading

import torch
from checks import DEVICE, MIB, fragmented, main, numbers, settle, stat, stitch_of
from torch import nn


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(DEVICE)


def warm(call) -> None:
    """Runs the call on a side stream first, as a capture needs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)


def capture(call, **options) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    warm(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        out = call()
    return graph, out


def churn(rounds: int = 20) -> None:
    """Allocates other memory, fills it with rubbish and frees it. Then empties the cache."""
    for index in range(rounds):
        held = [torch.full((size * MIB,), 255, dtype=torch.uint8, device=DEVICE)
                for size in (1, 3, 5 + index % 4, 20)]  # fmt: skip
        del held
    torch.cuda.empty_cache()


def check_capture_and_replay() -> None:
    with torch.no_grad():
        model, x = network(), numbers(64 * 256).view(64, 256)
        graph, y = capture(lambda: model(x))
        for seed in range(5):
            x.copy_(numbers(64 * 256, seed).view(64, 256))
            graph.replay()
            assert torch.allclose(y, model(x), atol=1e-4)


def check_captured_memory_is_the_graphs_own() -> None:
    with torch.no_grad():
        model, x = network(), numbers(512 * 256).view(512, 256)
        wanted = model(x).clone()
        graph, y = capture(lambda: model(x))
        for _ in range(5):
            churn(4)
            graph.replay()
            churn(2)
            assert torch.equal(y, wanted) or torch.allclose(y, wanted, atol=1e-5)


def check_replay_across_stitching() -> None:
    """Captured blocks stay as they are while all memory around them is stitched and taken apart."""
    x = torch.ones(3 * MIB, device=DEVICE)
    graph, y = capture(lambda: (x * 2 + 1).cumsum(0)[-1] + 0)
    graph.replay()
    wanted = float(y)
    before = stat("glake.stitches")
    for _ in range(6):
        kept = fragmented(8, 12)
        stitched = torch.full((stitch_of(8, 12),), 9, dtype=torch.uint8, device=DEVICE)
        graph.replay()
        assert float(y) == wanted
        assert int(stitched.view(-1)[::4096].long().sum()) == 9 * len(stitched.view(-1)[::4096])
        del stitched, kept
        settle()
        graph.replay()
        assert float(y) == wanted
    assert stat("glake.stitches") > before


def check_capture_in_fragmented_memory() -> None:
    """The capture itself needs more memory than any hole has."""
    x = torch.ones(1024, device=DEVICE)
    kept = fragmented()
    need = stitch_of() // 4 // 2

    def call() -> torch.Tensor:
        return (x[0].expand(need) * 3).sum()

    warm(call)
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction(1.0)  # a pool shares nothing, so it may have to grow
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    for factor in (1.0, 2.0):
        x.fill_(factor)
        graph.replay()
        assert float(y) == 3 * factor * need or abs(float(y) / (3 * factor * need) - 1) < 1e-3
    assert len(kept) == 8


def check_two_graphs_share_a_pool() -> None:
    pool = torch.cuda.graph_pool_handle()
    x = numbers(1 << 18)
    first, a = capture(lambda: torch.relu(x) * 2, pool=pool)
    second, b = capture(lambda: a.sum() + x.max(), pool=pool)
    for seed in (3, 4):
        x.copy_(numbers(1 << 18, seed))
        first.replay()
        second.replay()
        wanted = (torch.relu(x) * 2).sum() + x.max()
        assert torch.allclose(b, wanted, rtol=1e-4)


def check_memory_returns_with_the_graph() -> None:
    settle()
    before = torch.cuda.memory_reserved()
    x = torch.ones(8 * MIB, device=DEVICE)
    graph, y = capture(lambda x=x: (x + 1) * 2)
    graph.replay()
    torch.cuda.synchronize()
    del graph, y, x
    settle()
    assert torch.cuda.memory_reserved() <= before + 4 * MIB


def check_another_thread_allocates_during_capture() -> None:
    x = torch.ones(1 << 16, device=DEVICE)
    started, finish, found = threading.Event(), threading.Event(), []

    def other() -> None:
        started.wait(20)
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.empty(7 * MIB, dtype=torch.uint8, device=DEVICE)
            found.append(tensor.numel())
        finish.set()

    thread = threading.Thread(target=other)
    thread.start()
    warm(lambda: x * 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = x * 2
        started.set()
        finish.wait(20)
        z = y + 1
    thread.join()
    graph.replay()
    assert found == [7 * MIB] and float(z[0]) == 3.0


def check_graphed_callables_train() -> None:
    torch.manual_seed(0)
    plain = network()
    graphed = network()
    graphed.load_state_dict(plain.state_dict())
    sample = numbers(32 * 256).view(32, 256).requires_grad_()
    called = torch.cuda.make_graphed_callables(graphed, (sample,))
    for seed in range(3):
        x = numbers(32 * 256, seed).view(32, 256)
        # Without these, gradients are the graph's own buffers, to which the next replay adds.
        plain.zero_grad(set_to_none=True)
        graphed.zero_grad(set_to_none=True)
        plain(x).square().mean().backward()
        called(x.clone().requires_grad_()).square().mean().backward()
        churn(2)
        for a, b in zip(plain.parameters(), graphed.parameters(), strict=True):
            assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main(globals())
