"""What a report computes: trees of holders, layouts, and advice that follows from figures."""

from __future__ import annotations

import dataclasses

import pytest

from glake.trace import holders
from glake.trace.advice import advise
from glake.trace.digest import Digest, Moment, PolicyDigest, Span
from glake.trace.memory_map import FREE, LIVE, MIXED, UNIT, summarise
from glake.trace.replay import (
    DriverTime,
    Exhaustion,
    LayoutBlock,
    LayoutSegment,
    ReplayResult,
    StepCost,
    Timeline,
    load_trace,
)
from glake.units import micros, nanos, scale, size, size_range

MIB = 1 << 20
GIB = 1 << 30


def test_layers_of_a_model_add_up():
    tree = holders.tree(
        [
            ("forward;model.layers.0.mlp;aten.mm", 100, 1),
            ("forward;model.layers.17.mlp;aten.mm", 300, 2),
            ("forward;model.norm", 50, 1),
            ("", 7, 3),
        ]
    )
    assert (tree.bytes, tree.blocks) == (457, 7)
    forward, untagged = tree.children
    assert (forward.name, forward.bytes, forward.blocks) == ("forward", 450, 4)
    assert [(each.name, each.bytes) for each in forward.children] == [
        ("model.layers.*.mlp", 400),
        ("model.norm", 50),
    ]
    assert untagged.name == holders.UNTAGGED


@pytest.mark.parametrize("frame", ["v2.3", "conv2d", "layers.3x", "2"])
def test_numbers_that_are_no_path_component_stay(frame):
    assert holders.fold(frame) == {"v2.3": "v2.*"}.get(frame, frame)


def test_trees_of_hostile_tags_stay_small_and_lose_nothing():
    deep = ";".join(f"f{i}" for i in range(500))
    tree = holders.tree([(deep, 10**6, 1)] + [(f"t{i}", 1000 + i, 1) for i in range(5000)])

    def count(node: holders.Node) -> int:
        return 1 + sum(count(each) for each in node.children)

    def check(node: holders.Node) -> None:
        if node.children:
            assert sum(each.bytes for each in node.children) == node.bytes
            assert sum(each.blocks for each in node.children) == node.blocks
        for each in node.children:
            check(each)

    assert count(tree) < 100
    check(tree)
    assert tree.children[-1].name.endswith(" smaller)")


def segment(name, *blocks):
    """A segment of blocks, given as (bytes, state), end to end."""
    at, placed = 0, []
    for nbytes, state in blocks:
        placed.append(LayoutBlock(at, nbytes, state, 0))
        at += nbytes
    return LayoutSegment(name, at, placed)


def drawn(tape):
    """(bytes, live, pending) of all that a tape draws."""
    total = live = pending = 0
    for _, flat in tape:
        numbers = iter(flat)
        for number in numbers:
            bytes_, state = number // 4 * UNIT, number % 4
            total += bytes_
            if state == MIXED:
                live += next(numbers) * UNIT
                pending += next(numbers) * UNIT
            elif state == LIVE:
                live += bytes_
            elif state != FREE:
                pending += bytes_
    return total, live, pending


def test_layout_sums_and_holes():
    first = segment("a", (4 * MIB, "live"), (MIB, "free"), (MIB, "free"), (MIB, "pending"))
    second = segment("b", (3 * MIB, "free"), (MIB, "live"))
    second = dataclasses.replace(second, bytes=second.bytes + 2 * MIB)  # free: no block covers them
    layout = summarise([first, second])
    assert layout.physical == 13 * MIB
    assert (layout.live, layout.pending, layout.free) == (5 * MIB, MIB, 7 * MIB)
    assert (layout.segments, layout.blocks, layout.holes) == (2, 3, 3)
    assert layout.largest_free == 3 * MIB
    assert drawn(layout.tape) == (13 * MIB, 5 * MIB, MIB)


@pytest.mark.parametrize("most", [60, 400, 4000])
def test_tapes_shrink_to_their_limit_and_keep_every_byte(most):
    states = ["live", "free", "live", "pending"]
    segments = [
        segment(f"r{i}", *[(UNIT * (1 + (i * j) % 40), states[j % 4]) for j in range(50)])
        for i in range(60)
    ]
    layout = summarise(segments, most)
    assert sum(1 + len(flat) for _, flat in layout.tape) <= most
    assert drawn(layout.tape) == (layout.physical, layout.live, layout.pending)
    assert layout.live == sum(b.bytes for r in segments for b in r.blocks if b.state == "live")


def test_spans_of_set_up_and_steps(tmp_path):
    path = tmp_path / "job.trace"
    path.write_text("a 0 100 0\ns 4\na 1 50 0\nf 0\ns 9\na 2 70 1\nr 2 0\nf 2\nf 1\n")
    spans = [Span(**each) for each in load_trace(path).step_spans()]
    assert spans == [
        Span(None, 0, 1, 0, 100, 0),
        Span(4, 1, 3, 100, 150, 2),
        Span(9, 4, 5, 50, 120, 5),
    ]
    path.write_text("s 0\na 0 1 0\n")
    assert [each["step"] for each in load_trace(path).step_spans()] == [0]


def test_units():
    assert [size(each) for each in (0, 512, 1536, 80 * GIB, -MIB, 1023.6 * MIB)] == [
        "0 B", "512 B", "1.50 KiB", "80.00 GiB", "-1.00 MiB", "1.00 GiB",
    ]  # fmt: skip
    assert [size_range(1 << k, 2 << k) for k in (8, 9, 29)] == [
        "256 B to 512 B", "512 B to 1 KiB", "512 MiB to 1 GiB",
    ]  # fmt: skip
    assert [scale(each) for each in (0, 1536, 80 * GIB)] == [
        ("B", 1), ("KiB", 1 << 10), ("GiB", GIB),
    ]  # fmt: skip
    assert [nanos(each) for each in (40, 9999, 80e6)] == ["40 ns", "10.0 us", "80.0 ms"]
    assert [micros(each) for each in (0, 999, 1500, 2e6)] == ["0 us", "999 us", "1.5 ms", "2.00 s"]


def result(policy, **changes):
    plain = ReplayResult(
        trace="job.trace",
        policy=policy,
        capacity_bytes=80 * GIB,
        peak_live_bytes=60 * GIB,
        peak_physical_bytes=61 * GIB,
        utilisation=60 / 61,
        time_avg_utilisation=0.7,
        min_capacity_bytes=None,
        driver_calls=10,
        driver_calls_per_step=0.0,
        driver_us_per_step=0.0,
        growth_us_per_step=0.0,
        event_calls_per_step=0.0,
        event_us_per_step=0.0,
        stream_waits_per_step=2.0,
        host_ns_alloc=100.0,
        host_ns_free=100.0,
        oom=None,
        complete_after=512,
        events=1000,
        trace_peak_live_bytes=60 * GIB,
        driver_us=10.0,
        growth_us=10.0,
        event_calls=0,
        event_us=0.0,
        stream_waits=10,
        costs="published",
        by_costs={"published": DriverTime(10.0, 10.0, 0.0, 0.0, 0.0, 0.0)},
        steps=[StepCost(0, 0, 0.0, 0, 0.0, 0, 0.0)],
        peak_event=900,
        timeline=Timeline([0], [60 * GIB], [61 * GIB]),
        layout=None,
    )
    return dataclasses.replace(plain, **changes)


def job(*results, **changes):
    policies = [
        PolicyDigest(each, None, None, 0, None if each.oom is None else Moment(5, 50 * GIB, []))
        for each in results or [result("glake")]
    ]
    spans = [Span(None, 0, 10, 0, 20 * GIB, 9)]
    spans += [Span(i, 10 + 90 * i, 90, 20 * GIB, 60 * GIB, 50 + 90 * i) for i in range(6)]
    plain = Digest(
        name="job.trace",
        header={},
        events=1000,
        allocations=400,
        capacity=80 * GIB,
        complete_after=512,
        spans=spans,
        peak=Moment(50, 60 * GIB, [("", 60 * GIB, 10)]),
        static=40 * GIB,
        sizes=[(MIB, 10)],
        buckets=[(20, 10, 10 * MIB)],
        policies=policies,
    )
    return dataclasses.replace(plain, **changes)


def titles(digest):
    return [each.title for each in advise(digest)]


def test_a_job_with_nothing_to_change_gets_no_advice():
    assert advise(job()) == []


def test_what_stays_above_the_capacity_comes_before_all_else():
    found = advise(job(capacity=30 * GIB))
    assert found[0].level == "problem" and found[0].figure == "10.00 GiB"
    assert "stay allocated from step to step" in found[0].text
    assert "A smaller batch does not help" in found[0].text


def test_set_up_alone_above_the_capacity():
    found = advise(job(capacity=10 * GIB, static=None))
    assert (found[0].title, found[0].figure) == ("Set-up alone does not fit", "10.00 GiB")


def test_more_live_than_capacity_blames_no_allocator():
    oom = Exhaustion(40, 0, "out of memory")
    found = advise(job(result("native", oom=oom), capacity=50 * GIB))
    assert [each.figure for each in found] == ["10.00 GiB"]
    assert "no allocator can fit this" in found[0].title


def test_running_out_with_memory_to_spare_names_what_was_free():
    oom = Exhaustion(40, 0, "out of memory")
    found = advise(job(result("glake"), result("native", oom=oom)))
    assert found[0].title == "native runs out of memory with memory not in use"
    assert found[0].figure == "30.00 GiB" and "30.00 GiB are not" in found[0].text
    assert "GLAKE_ALLOCATOR=1" in found[0].text


def test_fragmentation_says_what_glake_saves():
    wasteful = result("native", peak_physical_bytes=75 * GIB)
    (found,) = advise(job(result("glake"), wasteful))
    assert found.title == "native holds 15.00 GiB that nobody uses"
    assert found.figure == "14.00 GiB"  # against glake's 61 GiB
    assert "1.250 x" in found.text


def tagged(*held, lasting=()):
    rest = ("", 60 * GIB - sum(each[1] for each in held), 1)
    return Moment(50, 60 * GIB, [*held, rest], list(lasting))


def test_roles_by_phase():
    state = ("optimizer;model.layers.0;aten.zeros_like", 24 * GIB, 100)
    (found,) = advise(job(peak=tagged(state, lasting=[state])))
    assert found.title == "Optimizer state: 40.0 % of the peak" and found.figure == "24.00 GiB"
    (found,) = advise(job(peak=tagged(state)))  # gone before the next step
    assert found.title == "Optimizer temporaries: 40.0 % of the peak" and "fused" in found.text
    assert titles(job(peak=tagged(("optimizer;m", 12 * GIB, 1)))) == []


def test_logits():
    loss = ("forward;model.lm_head;aten.mm", 4 * GIB, 2)
    (found,) = advise(job(peak=tagged(loss)))
    assert (found.title, found.figure) == ("Chunk the loss", "4.00 GiB")


@pytest.mark.parametrize(
    "tag",
    [
        "setup;module.lm_head.weight;parameter",
        "backward;module.lm_head;aten.mm",
        "backward;lm_head;aten._to_copy",
        "optimizer;AdamW;lm_head",
        "forward;lm_head;storage.resize_",
        "forward;lm_head;aten._to_copy",  # autocast's copy of the weight
        "workspace;lm_head",
    ],
)
def test_the_projections_weight_is_no_logits(tag):
    weight = (tag, 4 * GIB, 1)
    assert titles(job(peak=tagged(weight))) == titles(job(peak=tagged(weight, lasting=[weight])))
    assert "Chunk the loss" not in titles(job(peak=tagged(weight)))
    # Beside the weight, only the logits and their gradient count.
    logits = ("forward;module.lm_head;aten.mm", 3 * GIB, 1)
    loss = ("backward;aten._log_softmax_backward_data", 2 * GIB, 1)
    (found,) = advise(job(peak=tagged(weight, logits, loss)))
    assert (found.title, found.figure) == ("Chunk the loss", "5.00 GiB")
    assert "in 2 blocks" in found.text and "from aten.mm" in found.text


def test_growth_from_step_to_step():
    def spans(grown):
        return [
            Span(i, 100 * i, 100, 20 * GIB + grown * i, 60 * GIB, 100 * i + 5) for i in range(8)
        ]

    (found,) = advise(job(spans=spans(GIB)))
    assert found.level == "problem" and found.figure == "1.00 GiB a step"
    assert titles(job(spans=spans(0))) == []


def grown(*starts, end, peak=60 * GIB):
    spans = [Span(i, 100 * i, 100, at, peak + at, 100 * i + 5) for i, at in enumerate(starts)]
    return job(spans=spans, end_live=end)


def test_four_steps_and_the_end_show_a_leak():
    leak = [GIB * at for at in (0, 20, 22, 24)]
    (found,) = advise(grown(*leak, end=26 * GIB, peak=4 * GIB))
    assert (found.title, found.figure) == ("Memory kept grows with every step", "2.00 GiB a step")
    assert "from 22.00 GiB to 26.00 GiB over 2 steps" in found.text
    # No growth, growth that is not steady (the record may end within a step), or too few steps.
    for end in (24, 23, 33):
        assert "Memory kept grows with every step" not in titles(grown(*leak, end=end * GIB))
    assert titles(grown(*leak[:3], end=24 * GIB)) == []


def test_growth_explains_the_last_steps_peak():
    starts = [GIB * at for at in (0, 0, 20, 40, 60, 80, 100)]
    assert titles(grown(*starts, end=120 * GIB, peak=GIB)) == ["Memory kept grows with every step"]
    high = grown(*starts, end=120 * GIB, peak=GIB)
    high.spans[5] = dataclasses.replace(high.spans[5], peak_live=200 * GIB)
    assert "A few steps decide how much memory is needed" in titles(high)


def test_one_long_step_decides():
    spans = [Span(i, 100 * i, 100, GIB, 30 * GIB, 100 * i + 5) for i in range(8)]
    spans[5] = dataclasses.replace(spans[5], peak_live=60 * GIB)
    (found,) = advise(job(spans=spans))
    assert found.figure == "30.00 GiB" and "Step 5 peaks at 60.00 GiB" in found.text


def test_driver_time_against_glake():
    (found,) = advise(job(result("glake"), result("expandable", driver_us_per_step=264_000.0)))
    assert found.figure == "264.0 ms a step"


def test_room_to_spare_needs_a_known_smallest_capacity():
    (found,) = advise(job(result("glake", min_capacity_bytes=61 * GIB)))
    assert found.level == "note" and found.figure == "19.00 GiB"


def test_no_advice_without_a_number():
    for each in advise(
        job(
            result("glake", min_capacity_bytes=61 * GIB),
            result(
                "native",
                peak_physical_bytes=75 * GIB,
                min_capacity_bytes=76 * GIB,
                driver_us_per_step=9e4,
            ),
            result("gmlake:64MiB", oom=Exhaustion(40, None, "no")),
            peak=tagged(("forward;lm_head", 30 * GIB, 1), ("backward;x", 20 * GIB, 1)),
            sizes=[(8 * GIB, 1)],
        )
    ):
        assert any(digit in each.figure for digit in "123456789"), each
        assert each.figure in each.text, each  # `glake plan` prints the text alone
        assert each.figure not in each.title, each  # a report prints both side by side


def test_a_sharded_job_is_not_told_to_shard():
    gradients = ("backward;model.layers.0;aten.mm", 24 * GIB, 100)
    plain = advise(job(peak=tagged(gradients)))
    assert "Shard gradients (ZeRO-2, FSDP)" in plain[0].text
    header = {"strategy": "fsdp2, recompute, mixed", "world": "8"}
    (found,) = advise(job(peak=tagged(gradients), header=header))
    assert "Shard gradients" not in found.text
    assert "use more ranks (they are sharded over 8 ranks already)" in found.text
    # In a job of the user's own, a tag shows that it is sharded.
    gathered = ("forward;fsdp.FSDPParamGroup;all_gather", GIB, 1)
    (found,) = advise(job(peak=tagged(gradients, gathered)))
    assert "Shard gradients" not in found.text
    forward = ("forward;model.layers.0;aten.mm", 24 * GIB, 100)
    assert "Recompute them" in advise(job(peak=tagged(forward)))[0].text
    assert "ecompute them" not in advise(job(peak=tagged(forward), header=header))[0].text


def test_where_another_allocator_is_better_that_is_said():
    ours = result("glake", peak_physical_bytes=70 * GIB, driver_us_per_step=9600.0)
    theirs = result("expandable", driver_us_per_step=1300.0)
    (found,) = advise(job(ours, theirs))
    assert (found.level, found.figure) == ("note", "9.00 GiB")
    assert found.title == "expandable does this job better than glake"
    assert "GLAKE_ALLOCATOR" not in found.text and "expandable_segments:True" in found.text
    assert "70.00 GiB (expandable: 61.00 GiB)" in found.text
    assert "9.6 ms a step in the driver, modelled (expandable: 1.3 ms)" in found.text


def test_where_each_is_better_at_something_both_are_told():
    ours = result("glake", min_capacity_bytes=70 * GIB, driver_us_per_step=9600.0)
    theirs = result("native", min_capacity_bytes=79 * GIB, driver_us_per_step=1300.0)
    found = next(each for each in advise(job(ours, theirs)) if "native" in each.title)
    assert (found.level, found.title) == ("note", "glake or native: each is better at something")
    assert "runs in 70.00 GiB at least (native: 79.00 GiB); but it spends 9.6 ms" in found.text


def test_with_room_under_the_default_nothing_needs_to_change():
    ours = result("glake", min_capacity_bytes=11 * GIB, capacity_bytes=160 * GIB)
    theirs = result("native", min_capacity_bytes=62 * GIB, capacity_bytes=160 * GIB)
    state = ("optimizer;model.layers.0;aten.zeros_like", 24 * GIB, 100)
    found = advise(job(ours, theirs, capacity=160 * GIB, peak=tagged(state, lasting=[state])))
    assert found[0].title == "It fits with 98.00 GiB to spare: nothing needs to change"
    assert {each.level for each in found} == {"note"}
    assert not any("GLAKE_ALLOCATOR" in each.text for each in found)
    # Where the default does not run the job, the choice matters.
    fails = result("native", oom=Exhaustion(40, 0, "out of memory"))
    titles_then = titles(job(ours, fails, capacity=160 * GIB))
    assert not any("nothing needs to change" in each for each in titles_then)


def test_the_cheapest_way_out_of_an_out_of_memory_comes_first():
    fails = result("native", oom=Exhaustion(40, 0, "out of memory"))
    ours, theirs = (
        result("glake", driver_us_per_step=9600.0),
        result("expandable", driver_us_per_step=1300.0),
    )
    text = advise(job(ours, theirs, fails))[0].text
    assert "The job runs with expandable (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text
    assert "or glake (GLAKE_ALLOCATOR=1; 9.6 ms a step in the driver)" in text
