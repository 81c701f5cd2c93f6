"""CUDA graphs: their pools, what they hold and give back, and checkpoints of cudagraph trees."""

import gc

import torch
from common import MIB, emptied, holds, live_blocks, marked, raises, segments_of, stat, u8


def captured(work, pool=None, stream=None):
    """A graph of what `work` does, after a warm-up, and what `work` returned."""
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        made = work()
    return graph, made


def case_a_graph_copies_what_is_there_at_replay():
    source = torch.zeros(3 * MIB, dtype=torch.uint8).pin_memory()

    def work():
        return source.to("cuda", non_blocking=True).clone()

    graph, out = captured(work)
    for mark in (3, 9):
        source.fill_(mark)
        graph.replay()
        torch.cuda.synchronize()
        assert holds(out, mark)


def case_a_graphs_memory_is_not_given_to_others():
    graph, out = captured(lambda: u8(5 * MIB))
    place = out.data_ptr()
    del out
    others = [u8(5 * MIB) for _ in range(4)]
    assert place not in [other.data_ptr() for other in others]
    emptied()
    assert live_blocks(graph.pool()) == 0 and len(segments_of(graph.pool())) >= 1
    pool = graph.pool()
    del graph
    emptied()
    assert segments_of(pool) == []


def case_a_graphs_memory_is_given_back_after_its_replays():
    source = marked(5 * MIB, 1)
    graph, out = captured(lambda: source.clone().clone())
    graph.replay()  # on another stream than the capture's, and still pending
    del graph, out
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()


def case_results_outlive_the_graph():
    source = torch.full((3 * MIB,), 7, dtype=torch.uint8).pin_memory()
    graph, out = captured(lambda: source.to("cuda", non_blocking=True))
    graph.replay()
    torch.cuda.synchronize()
    del graph
    emptied()
    others = [marked(3 * MIB, 1) for _ in range(3)]
    assert holds(out, 7) and all(holds(other, 1) for other in others)


def case_two_graphs_share_a_pool():
    first, one = captured(lambda: u8(5 * MIB))
    second, two = captured(lambda: u8(5 * MIB), pool=first.pool())
    assert first.pool() == second.pool()
    assert one.data_ptr() != two.data_ptr()
    assert live_blocks(first.pool()) == 2
    pool = first.pool()
    del first, one
    gc.collect()
    assert live_blocks(pool) == 1
    del second, two
    emptied()
    assert segments_of(pool) == []


def case_freed_in_the_first_graph_serves_the_second():
    stream = torch.cuda.Stream()
    first, one = captured(lambda: u8(5 * MIB), stream=stream)
    place, pool = one.data_ptr(), first.pool()
    del one
    second, two = captured(lambda: u8(5 * MIB), pool, stream)
    assert two.data_ptr() == place and second.pool() == pool


def case_streams_of_a_capture_have_segments_of_their_own():
    """No stream gets memory of another captured stream without a wait."""
    graph, first, second = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    kept = torch.ones(8 * MIB, device="cuda")
    before = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        graph.capture_begin()
        made = kept + kept
        second.wait_stream(first)
        with torch.cuda.stream(second):
            _ = made + kept
        del _
        first.wait_stream(second)
        graph.capture_end()
    found = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) not in before]
    assert {s["stream"] for s in found} == {first.cuda_stream, second.cuda_stream}, found
    assert len(found) == 2


def case_emptying_in_a_capture_harms_nothing():
    kept = u8(30 * MIB)
    del kept
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = u8(5 * MIB)
        torch.cuda.empty_cache()
        more = u8(5 * MIB)
    graph.replay()
    torch.cuda.synchronize()
    assert inside.data_ptr() != more.data_ptr()


def case_out_of_memory_in_a_capture_is_said():
    def work():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            u8(64 << 30)

    raises(torch.OutOfMemoryError, "Tried to allocate", work)
    graph, out = captured(lambda: u8(5 * MIB))
    graph.replay()
    torch.cuda.synchronize()
    assert out.is_cuda


def case_a_graph_is_captured_again_after_a_reset():
    graph = torch.cuda.CUDAGraph()
    for size in (3 * MIB, 5 * MIB):
        with torch.cuda.graph(graph):
            out = u8(size)
        graph.replay()
        torch.cuda.synchronize()
        assert out.numel() == size
        graph.reset()
    emptied()
    assert stat("allocation.all.current") == 1 and out.is_cuda


def case_recorded_in_a_capture_is_not_reused_in_it():
    first, second, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        graph.capture_begin()
        block = u8(5 * MIB)
        place = block.data_ptr()
        second.wait_stream(first)
        with torch.cuda.stream(second):
            copy = block.clone()
            block.record_stream(second)
        del block
        other = u8(5 * MIB)
        first.wait_stream(second)
        graph.capture_end()
    assert other.data_ptr() != place and copy.is_cuda
    graph.replay()
    torch.cuda.synchronize()


def case_a_capture_may_reuse_what_it_has_joined():
    """By graph_capture_record_stream_reuse a block is free in the capture again after the join."""
    torch.cuda.memory._set_allocator_settings("graph_capture_record_stream_reuse:True")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        graph.capture_begin()
        sink, block = u8(8), u8(8)
        place = block.data_ptr()
        second.wait_stream(first)
        with torch.cuda.stream(second):
            copy = block.clone()
            block.record_stream(second)
        del block
        before = u8(8)
        first.wait_stream(second)
        sink.fill_(1)
        after = u8(8)
        graph.capture_end()
    assert before.data_ptr() != place and copy.is_cuda
    assert after.data_ptr() == place


def case_callables_are_graphed():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    model = model.cuda()
    inputs = torch.randn(16, 64, device="cuda", requires_grad=True)
    held = torch.cuda.memory_allocated()
    graphed = torch.cuda.make_graphed_callables(model, (inputs,))
    for _ in range(3):
        graphed(inputs).sum().backward()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() > held
    assert all(p.grad is not None for p in model.parameters())


def described(pool):
    return [
        (s["address"], s["total_size"], s["allocated_size"], s["active_size"], s["segment_type"],
         [(b["address"], b["size"], b["state"]) for b in s["blocks"]])
        for s in segments_of(pool)
    ]  # fmt: skip


def storages(tensors):
    return [tensor.untyped_storage()._cdata for tensor in tensors]


def case_a_checkpoint_restores_what_was():
    graph, kept = captured(lambda: [u8(512) for _ in range(11)][5])
    pool, before = graph.pool(), described(graph.pool())
    state = torch._C._cuda_getCheckpointState(0, pool)
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    assert described(pool) == before and live_blocks(pool) == 1 and kept.is_cuda


def case_what_came_after_a_checkpoint_is_stale():
    graph, kept = captured(lambda: u8(512))
    pool, before = graph.pool(), described(graph.pool())
    state = torch._C._cuda_getCheckpointState(0, pool)
    second, later = captured(lambda: u8(512), pool=pool)
    torch._C._cuda_setCheckpointPoolState(0, state, storages([later]), [])
    del later
    after = described(pool)
    assert [segment for segment in after if segment in before] == before
    assert live_blocks(pool) == 1 and kept.is_cuda and second.pool() == pool


def case_what_died_since_a_checkpoint_lives_again():
    graph, kept = captured(lambda: (u8(512), u8(512)))
    pool, places = graph.pool(), [tensor.data_ptr() for tensor in kept]
    state = torch._C._cuda_getCheckpointState(0, pool)
    del kept
    assert live_blocks(pool) == 0
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])
    for left, place in ((1, places[0]), (0, places[1])):
        torch._C._cuda_cudaCachingAllocator_raw_delete(place)
        assert live_blocks(pool) == left


def case_storages_are_given_back_their_blocks():
    graph, kept = captured(lambda: [u8(2 * MIB), u8(2 * MIB), u8(20 * MIB)])
    pool = graph.pool()
    state = torch._C._cuda_getCheckpointState(0, pool)
    places = [(tensor.data_ptr(), tensor.nbytes) for tensor in kept]
    del kept
    made = []
    for place, size in places:
        storage = torch._C._construct_storage_from_data_pointer(place, torch.device("cuda:0"), size)
        made.append(torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage))
    torch._C._cuda_setCheckpointPoolState(0, state, [], storages(made[:2]))
    for left in (3, 2, 1, 1):
        assert live_blocks(pool) == left
        if made:
            del made[0]
    torch._C._cuda_cudaCachingAllocator_raw_delete(places[2][0])
    assert live_blocks(pool) == 0


def case_live_allocations_of_a_pool_are_checked():
    pool = torch.cuda.graph_pool_handle()
    graph, kept = captured(lambda: u8(512), pool=pool)

    def check(places):
        return torch._C._cuda_checkPoolLiveAllocations(0, pool, places)

    assert check({kept.data_ptr()}) and not check({kept.data_ptr(), 0}) and not check(set())
    del kept
    assert check(set()) and graph.pool() == pool


def case_compiled_by_cudagraph_trees():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    model = model.cuda()
    compiled = torch.compile(model, backend="cudagraphs")
    data = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(data)
            assert out.shape == (16, 8)
            del out
    torch.cuda.synchronize()
    pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
    assert len(pools) >= 2, pools
    torch._dynamo.reset()
