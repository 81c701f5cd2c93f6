"""Jobs recorded without running them are true to real tensors and tagged. Errors are clear."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from glake.errors import BadTarget, PlanError
from glake.trace.job import Job
from glake.trace.record import record

HERE = Path(__file__).parent


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """recorded(function, ...): the trace's lines, split into words, and its facts."""
    monkeypatch.chdir(HERE)

    def run(function, **request):
        path = tmp_path / f"{function}.trace.gz"
        facts = record(f"plan_jobs:{function}", path, **request)
        with gzip.open(path, "rt") as lines:
            return [line.split() for line in lines], facts

    return run


def births_and_deaths(lines):
    """(op, bytes) of every block above 64 bytes from the first step on, in order."""
    sizes, out = {}, []
    for line in lines:
        if line[0] == "a":
            sizes[line[1]] = int(line[2])
        if line == ["s", "0"]:
            out.clear()
        if line[0] in "af" and sizes[line[1]] > 64:
            out.append((line[0], sizes[line[1]]))
    return out


def really(function, steps, tmp_path):
    """Records the same job with real tensors on the CPU, by the same recorder."""
    import sys

    from glake.trace.format import TraceWriter
    from glake.trace.recorder import Recorder
    from glake.trace.scratch import Scratch

    sys.path.insert(0, str(HERE))
    import plan_jobs

    path = tmp_path / "real.trace"
    with TraceWriter(path) as writer:
        recorder = Recorder(writer, Scratch("none"), device="cpu")
        with recorder.watching(), recorder:
            step = getattr(plan_jobs, function)(Job(device="cpu", steps=steps))
            for number in range(steps):
                recorder.step(number)
                step(number)
            recorder.flush()
    return [line.split() for line in path.read_text().splitlines()]


def test_a_recorded_job_is_event_for_event_the_real_one(recorded, tmp_path):
    fake, facts = recorded("training", steps=3, scratch="none")
    real = really("training", 3, tmp_path)
    # They differ in set-up, because on the CPU weights are made where they stay.
    ours, theirs = births_and_deaths(fake), births_and_deaths(real)
    assert len(ours) > 400
    assert ours == theirs
    assert facts["setup_live_bytes"] == sum(
        int(line[2]) for line in fake if line[0] == "a" and line[4].endswith(";parameter")
    )
    tags = Counter(line[4] for line in fake if line[0] == "a")
    assert tags["setup;blocks.1.up.weight;parameter"] == 1
    for expected in (
        "forward;blocks.0.up;aten.addmm",
        "recompute;blocks.1.norm;aten.native_layer_norm",
        "backward;blocks.0.down;aten.mm",
        "backward;head;aten.mm",
        "optimizer;AdamW;aten.zeros_like",
    ):
        assert tags[expected] >= 1, expected
    assert not any(";;" in tag for tag in tags)


def test_fsdp2_over_a_process_group_that_is_not_there(recorded):
    lines, facts = recorded("sharded", world=4, rank=2, steps=2, scratch="none")
    assert (facts["world"], facts["rank"]) == (4, 2)
    blocks = [line for line in lines if line[0] == "a"]
    streams = Counter(int(line[3]) for line in blocks)
    assert len(streams) >= 3 and streams[0] > 100  # gathers and reductions have their own
    assert any(line[4] == "forward;blocks.0;storage.resize_" for line in blocks)
    # Between steps only a quarter of the weights and of both AdamW moments is left, in float32.
    weights = 128 * 64 * 2 + 128 + 2 * (2 * 64 * 256 + 256 + 3 * 64)
    step = lines.index(["s", "1"])
    sizes = {line[1]: int(line[2]) for line in blocks}
    live = sum(sizes[line[1]] for line in lines[:step] if line[0] == "a")
    live -= sum(sizes[line[1]] for line in lines[:step] if line[0] == "f")
    assert 3 * weights <= live <= 3 * weights * 1.02
    # DTensor's own shape arithmetic works on whole weights, and must not be recorded.
    assert not any("_propagate" in line[4] for line in blocks)


def test_streams_attention_routing_and_host_memory(recorded):
    lines, facts = recorded("everything", steps=2)
    blocks = [line for line in lines if line[0] == "a"]
    by_id = {line[1]: line for line in blocks}
    assert {int(line[3]) for line in blocks if line[2] == str(7777 * 4)} == {1, 2}
    shared = [line for line in lines if line[0] == "r"]
    assert [(by_id[id][2], stream) for _, id, stream in shared] == [("25600", "1"), ("25600", "2")]
    operators = Counter(line[4].rpartition(";")[2] for line in blocks)
    assert operators["aten._scaled_dot_product_flash_attention"] > 0
    assert operators["aten._scaled_dot_product_efficient_attention"] > 0
    assert operators["scratch:aten._scaled_dot_product_flash_attention_backward"] == 4
    assert "aten._softmax" not in {
        line[4].rpartition(";")[2] for line in blocks if "topk" not in line[4]
    }
    workspaces = {(line[2], line[3]) for line in blocks if line[4] == "workspace;cublas"}
    assert workspaces == {(str(32 << 20), "0")}
    assert facts["peak_pinned_host_bytes"] >= 4000
    assert "routing being balanced" in facts["assumptions"]
    assert facts["model"] == "a bit of everything" and facts["3"] == "three"


def test_what_the_job_raises_comes_with_its_own_line(recorded, tmp_path):
    with pytest.raises(PlanError, match=r"(?s)plan_jobs\.py:\d+ in step: linear\(.*65.*64") as seen:
        recorded("mistaken", steps=1)
    assert "site-packages" not in str(seen.value)
    assert list(tmp_path.iterdir()) == []  # no half-written trace


def test_reading_values_is_told_with_the_line_and_what_to_do(recorded):
    with pytest.raises(PlanError) as seen:
        recorded("reads_values", steps=1)
    lines = str(seen.value).splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["plan_jobs.py"] * 2
    assert "in log: return numpy.asarray(" in lines[1]
    assert lines[2].startswith(".numpy() asks for the values") and "docs/plan.md" in lines[2]
    assert len(lines) == 3


def test_a_job_that_exits_is_told_with_the_line_and_its_last_words(recorded):
    with pytest.raises(
        PlanError, match=r"(?s)plan_jobs\.py:\d+ in exits: .*sys\.exit\(3\)"
    ) as seen:
        recorded("exits", steps=1)
    assert str(seen.value).endswith("its last words:\nno data was found")


def test_jobs_that_make_no_sense(recorded):
    with pytest.raises(PlanError, match="allocated nothing on the device"):
        recorded("empty", steps=1)
    with pytest.raises(
        BadTarget, match=r"returned step\(\), which cannot be called with the number"
    ):
        recorded("takes_no_number", steps=1)
    for function, made in (("generates", "generator"), ("awaits", "coroutine")):
        with pytest.raises(BadTarget, match=f"returned a {made}, so nothing of it has run"):
            recorded(function, steps=1)
