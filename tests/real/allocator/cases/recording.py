"""The recorded history: which events it keeps, with which stacks, and what torch makes of it."""

import json
import pickle
import tempfile
import threading
from pathlib import Path

import torch
from common import GIB, MIB, emptied, history, raises, trace, u8
from torch.cuda import _gpu_trace
from torch.cuda._memory_viz import profile_plot, segment_plot, trace_plot


def made_here():
    return u8(3 * MIB)


def case_stacks_are_kept_as_asked():
    """Option `context` is None, "state", "alloc" or "all"."""
    kept = {}
    for context in (None, "state", "alloc", "all"):
        emptied()
        with history(context=context, stacks="python"):
            block = made_here()
            snapshot = torch.cuda.memory._snapshot()
            freed = threading.Event()

            def released(it, freed=freed):
                it.clear()
                freed.set()

            holder = [block]
            del block
            released(holder)
            kept[context] = (snapshot, torch.cuda.memory._snapshot()["device_traces"][0])
    for context, (snapshot, events) in kept.items():
        blocks = [b for s in snapshot["segments"] for b in s["blocks"]
                  if b["state"] == "active_allocated"]  # fmt: skip
        named = "made_here" in json.dumps(blocks)
        assert named == (context is not None), context
        allocated = [e for e in events if e["action"] == "alloc"]
        assert ("made_here" in json.dumps(allocated)) == (context in ("alloc", "all")), context
        freed = [e for e in events if e["action"].startswith("free")]
        assert len(freed) >= 1 and ("released" in json.dumps(freed)) == (context == "all"), context


def case_cpp_stacks_name_pytorchs_functions():
    with history("state", stacks="all"):
        kept = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
        blocks = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"]]
    assert any("case_cpp_stacks" in str(b["frames"]) for b in blocks if "frames" in b), kept


def case_every_event_has_its_place():
    emptied()
    with history(stacks="python"):
        block = u8(3 * MIB)
        place = block.data_ptr()
        del block
        emptied()
        events = trace()
    actions = [e["action"] for e in events]
    for wanted in ("alloc", "free_requested", "free_completed"):
        (event,) = (e for e in events if e["action"] == wanted and e["addr"] == place)
        assert event["size"] == 3 * MIB and event["stream"] == 0
    assert actions.index("alloc") < actions.index("free_requested")
    assert actions.index("free_requested") <= actions.index("free_completed")
    grown = [e for e in events if e["action"] in ("segment_alloc", "segment_map")]
    given = [e for e in events if e["action"] in ("segment_free", "segment_unmap")]
    assert sum(e["size"] for e in grown) == sum(e["size"] for e in given) >= 3 * MIB
    times = [e["time_us"] for e in events]
    assert times == sorted(times) and times[0] > 0


def case_a_block_that_waits_is_freed_twice():
    """free_requested comes when its tensor goes, free_completed when the other stream is done."""
    side = torch.cuda.Stream()
    with history():
        block = u8(3 * MIB)
        block.record_stream(side)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1000)
        del block
        actions = [e["action"] for e in trace()]
        assert "free_requested" in actions
        torch.cuda.synchronize()
        u8(5 * MIB)
        torch.cuda.empty_cache()
        assert [e["action"] for e in trace()].count("free_completed") == 2


def case_actions_can_be_left_out():
    for skipped in (["free_requested"], ["alloc", "free_completed"], []):
        with history(context="all", skip_actions=skipped):
            u8(3 * MIB)
            torch.cuda.empty_cache()
            actions = {e["action"] for e in trace()}
        assert actions and not actions & set(skipped), (skipped, actions)
    raises(
        RuntimeError,
        "nonsense",
        torch.cuda.memory._record_memory_history,
        skip_actions=["nonsense"],
    )


def case_the_last_entries_are_kept():
    with history(max_entries=10):
        for size in range(1, 21):
            u8(size * MIB)
        events = trace()
    assert len(events) == 10
    assert events[-1]["size"] == 20 * MIB


def case_history_can_be_cleared():
    with history():
        kept = u8(3 * MIB)
        torch.cuda.memory._record_memory_history(clear_history=True)
        assert "alloc" not in [e["action"] for e in trace()]
        more = u8(5 * MIB)
        sizes = [e["size"] for e in trace() if e["action"] == "alloc"]
        assert sizes == [5 * MIB] and kept.is_cuda and more.is_cuda


def case_without_history_there_are_no_events():
    kept = u8(3 * MIB)
    snapshot = torch.cuda.memory._snapshot()
    assert kept.is_cuda and not any(snapshot["device_traces"]), snapshot["device_traces"]
    assert sum(s["allocated_size"] for s in snapshot["segments"]) == 3 * MIB


def case_metadata_is_with_every_event():
    emptied()
    torch.cuda.memory._set_memory_metadata("who")
    with history(context="all"):
        u8(3 * MIB)
        torch.cuda.empty_cache()
        assert torch.cuda.memory._get_memory_metadata() == "who"
        assert all(e["user_metadata"] == "who" for e in trace())
        torch.cuda.memory._set_memory_metadata("")


def case_snapshots_can_be_drawn_and_kept():
    with history("all", stacks="python"):
        kept = [u8(k * MIB) for k in (1, 3, 5)]
        del kept[1]
        snapshot = torch.cuda.memory._snapshot()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "snapshot.pickle"
            torch.cuda.memory._dump_snapshot(str(file))
            loaded = pickle.loads(file.read_bytes())
    for draw in (trace_plot, segment_plot):
        assert "html" in draw(snapshot).lower()
    assert [s["address"] for s in loaded["segments"]] == [
        s["address"] for s in snapshot["segments"]
    ]
    assert set(loaded) >= {"segments", "device_traces", "allocator_settings"}


def case_segments_and_blocks_have_all_fields():
    with history("all"):
        kept = u8(3 * MIB)
        segment = torch.cuda.memory._snapshot()["segments"][0]
    for field in (
        "device", "address", "total_size", "allocated_size", "active_size", "requested_size",
        "stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks",
    ):  # fmt: skip
        assert field in segment, field
    (block,) = (b for b in segment["blocks"] if b["state"] == "active_allocated")
    assert block["address"] == kept.data_ptr() and block["requested_size"] == 3 * MIB
    assert segment["address"] <= block["address"]
    assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    for before, after in zip(segment["blocks"], segment["blocks"][1:], strict=False):
        assert before["address"] + before["size"] == after["address"]


def case_annotations_are_kept():
    with history(global_record_annotations=True), torch.profiler.record_function("a phase"):
        u8(3 * MIB)
        snapshot = torch.cuda.memory._snapshot()
    stages = [a["name"] for a in snapshot["external_annotations"]]
    assert "a phase" in stages, stages


def case_out_of_memory_is_an_event_of_its_device():
    with history(device="cuda:1"):
        raises(torch.OutOfMemoryError, "", torch.empty, 64 * GIB, dtype=torch.uint8,
               device="cuda:1")  # fmt: skip
        assert [e["action"] for e in trace(1)].count("oom") == 1
        assert "oom" not in [e["action"] for e in trace(0)]


def case_the_profiler_sees_memory():
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        kept = u8(3 * MIB)
        del kept
    grown = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert sorted(e.nbytes() for e in grown) == [-3 * MIB, 3 * MIB]


def case_hooks_of_the_gpu_trace_are_told():
    """torch.cuda._sanitizer learns of memory by these hooks."""
    told = []
    _gpu_trace.register_callback_for_memory_allocation(lambda at: told.append(("allocated", at)))
    _gpu_trace.register_callback_for_memory_deallocation(lambda at: told.append(("freed", at)))
    torch._C._activate_gpu_trace()
    block = u8(3 * MIB)
    at = block.data_ptr()
    del block
    assert told == [("allocated", at), ("freed", at)]


def case_the_profiler_can_draw_memory():
    with torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True) as done:
        torch.zeros(128, 128, device="cuda")
    assert "html" in profile_plot(done).lower()


def case_context_of_a_pointer_is_told():
    with history("state", stacks="python"):
        kept = made_here()
        frames = torch.cuda.memory_snapshot()[0]["blocks"]
    assert "made_here" in json.dumps([b for b in frames if b["address"] == kept.data_ptr()])
