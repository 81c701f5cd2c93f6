"""Roles of memory: exact sums for jobs whose memory is known by arithmetic."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import events, lines_of

from glake import _C
from glake.errors import InvalidArgument, PlanError
from glake.trace import roles
from glake.trace.kinds import kind

GPT2 = 124_439_808  # parameters
BUCKET = 2 * 500_000_000  # DeepSpeed's reduce bucket, in bfloat16


def parse(*lines: str):
    return _C.parse_trace("t", ["\n".join(lines).encode()])


def at(trace, event: int) -> dict[str, int]:
    return dict(roles.by_role(trace.holders(event), trace.lasting(event)))


def training(*setup: tuple[int, str], steps: int, trained: int) -> list[str]:
    """Steps of foreach AdamW on `trained` float32 weights. The first step makes the moments, and
    each update has a temporary as large as the weights."""
    lines = [f"a {i} {size} 0 {tag}" for i, (size, tag) in enumerate(setup)]
    for step in range(steps):
        lines += [f"s {step}", "a 100 1000 0 forward;h.0;aten.mm", "f 100"]
        lines += [f"a 101 {4 * trained} 0 backward;h.0;aten.mm"]
        if step == 0:
            lines += [
                f"a {102 + i} {4 * trained} 0 optimizer;AdamW;aten.zeros_like" for i in (0, 1)
            ]
        lines += [f"a 104 {4 * trained} 0 optimizer;AdamW;aten._foreach_sqrt", "f 104", "f 101"]
    return lines


WEIGHTS = (4 * GPT2, "setup;transformer.wte.weight;parameter")


@pytest.mark.parametrize("step", [0, 1, 2])
def test_adamw_keeps_two_moments_and_borrows_a_third(step):
    lines = training(WEIGHTS, steps=3, trained=GPT2)
    trace = parse(*lines)
    update = [i for i, line in enumerate(lines) if "_foreach_sqrt" in line][step]
    assert at(trace, update) == {
        "parameters and buffers": 497_759_232,
        "gradients and backward's own": 497_759_232,
        "optimizer state": 995_518_464,
        "optimizer temporaries": 497_759_232,
    }
    assert trace.peak_live_event == [i for i, line in enumerate(lines) if "_foreach" in line][0]


def test_buckets_of_ddp_are_no_parameters():
    """A tied weight that set-up makes and drops is no parameter either."""
    lines = training(WEIGHTS, (7, "setup;aten.empty"), (4 * GPT2, "setup;aten.empty"),
                     steps=2, trained=GPT2)  # fmt: skip
    lines.insert(3, "f 1")
    trace = parse(*lines)
    assert at(trace, 1) == {"parameters and buffers": 4 * GPT2, "temporaries of set-up": 7}
    held = at(trace, trace.peak_live_event)
    assert held["gradient buckets and communication buffers"] == 497_759_232
    assert held["parameters and buffers"] == 497_759_232
    assert held["optimizer state"] == 995_518_464


def test_a_rank_of_zero3_holds_an_eighth_and_its_bucket():
    part = GPT2 // 8
    setup = (
        (2 * part, "setup;parameter"),
        (2 * part, "setup;gradient"),
        (4 * part, "setup;AdamW.param_groups.0;master"),
        (BUCKET, "setup;communication"),
    )
    trace = parse(*training(*setup, steps=2, trained=part))
    assert at(trace, trace.peak_live_event) == {
        "parameters and buffers": 31_109_952,
        "master weights": 62_219_904,
        "gradient buckets and communication buffers": 1_000_000_000,
        "gradients and backward's own": 31_109_952 + 62_219_904,
        "optimizer state": 124_439_808,
        "optimizer temporaries": 62_219_904,
    }


def test_set_up_without_kinds_is_parameters():
    """A user's own tags (glake.tag) say no more than the phase."""
    trace = parse("a 1 5 0 init;model.layers.0", "a 2 3 0 weights", "s 0", "a 3 2 0 forward;x")
    assert at(trace, 3) == {"parameters and buffers": 8, "activations": 2}


@pytest.mark.parametrize(
    ("tag", "role"),
    [
        ("backward;h.0;storage.resize_", "gathered weights"),
        ("forward;parameter", "activations"),
        ("parameter", "parameters and buffers"),
        ("recompute;h.0;aten.mm", "activations"),
        ("workspace;cublas", "kernel workspaces"),
        ("train.py:3:main", "other"),
        ("", "other"),
    ],
)
def test_roles_that_a_tag_alone_decides(tag, role):
    assert {roles.role_of(tag, lasting) for lasting in (False, True)} == {role}


def test_nothing_is_said_of_a_trace_without_tags():
    assert at(parse("a 1 5 0", "s 0"), 0) == {}


def outliving(lines: list[str], event: int) -> Counter[str]:
    """Bytes live after an event, by tag, of blocks that reach a step mark or the trace's end."""
    sums: Counter[str] = Counter()
    for i, line in enumerate(lines[: event + 1]):
        word = line.split()
        if word[0] != "a":
            continue
        after = lines[i + 1 :]
        ends = after.index(f"f {word[1]}") if f"f {word[1]}" in after else len(after)
        lives_on = any(each.startswith("s ") for each in after[:ends]) or ends == len(after)
        if i + 1 + ends > event and lives_on:
            sums[word[4]] += int(word[2])
    return sums


@given(plan=st.lists(events(streams=2), min_size=1, max_size=60), pick=st.integers(0, 999))
@settings(max_examples=200, deadline=None)
def test_lasting_is_what_a_step_or_the_end_sees(plan, pick):
    lines = [
        f"{line} t{i % 3}" if line.startswith("a") else line
        for i, line in enumerate(lines_of(plan))
    ]
    event = pick % len(lines)
    trace = parse(*lines)
    found = {tag: size for tag, size, _ in trace.lasting(event)}
    assert found == outliving(lines, event)
    held = {tag: blocks for tag, _, blocks in trace.holders(event)}
    assert all(blocks <= held[tag] for tag, _, blocks in trace.lasting(event))


def test_a_slot_used_again_within_the_step_says_nothing_of_the_block_before():
    trace = parse("a 1 5 0 x", "s 0", "f 1", "a 2 7 0 y", "f 2", "s 1")
    assert trace.lasting(1) == [("x", 5, 1)]
    assert trace.lasting(3) == []
    with pytest.raises(InvalidArgument, match="events 0 to 5"):
        trace.lasting(6)


def test_a_kind_that_is_none_is_refused():
    with pytest.raises(PlanError, match=r"'weights'.*one of parameter, buffer"):
        kind(object(), "weights")
