"""Ready plans built and recorded: published sizes, what a strategy keeps, ZeRO-3's arithmetic."""

from __future__ import annotations

import gzip
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

from glake.errors import InvalidOption  # noqa: E402
from glake.trace import plans  # noqa: E402
from glake.trace.job import Job  # noqa: E402
from glake.trace.plans import configs, models, options, zero3  # noqa: E402
from glake.trace.record import record  # noqa: E402

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import ready_plan_jobs  # noqa: E402

# Parameters of ready_plan_jobs.SIZES, a llama of four layers, computed by hand.
LAYER = 4 * 512 * 512 + 3 * 512 * 2048 + 2 * 512
PARAMETERS = 2 * 1024 * 512 + 4 * LAYER + 512


def test_every_model_has_the_parameters_it_is_published_with():
    plain = options.parse({"precision": "bf16"})
    for row in plans.describe():
        if row.parameters is None:
            continue
        model = models.build(configs.load(row.name, plain), plain, "meta")
        counted = sum(each.numel() for each in model.parameters())
        assert counted == pytest.approx(row.parameters, rel=0.01), row.name
        layers = model.config.num_hidden_layers
        assert len(models.blocks(model)) == layers, row.name


def live_by_step(path):
    """step -> (live bytes at its end, most live in it). A step ends where the next begins."""
    sizes, live, step = {}, 0, -1
    ends, most = {}, defaultdict(int)
    with gzip.open(path, "rt") as lines:
        for line in lines:
            word = line.split()
            if word[0] == "a":
                sizes[word[1]] = int(word[2])
                live += int(word[2])
                most[step] = max(most[step], live)
            elif word[0] == "f":
                live -= sizes.pop(word[1])
            elif word[0] == "s":
                step = int(word[1])
            ends[step] = live
    return {i: (ends[i], most[i]) for i in ends}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)

    def run(function, steps, **request):
        path = tmp_path / f"{function}.trace.gz"
        record(f"ready_plan_jobs:{function}", path, steps=steps, scratch="none", **request)
        return live_by_step(path)

    return run


def test_each_strategy_keeps_what_it_must_and_no_more(recorded):
    jobs = ready_plan_jobs.STRATEGIES
    found = recorded("strategies", len(jobs), world=2)
    bucket = 2 * zero3.REDUCE_BUCKET
    # Bytes for each parameter at the end and at most: weights, gradients, Adam's two moments.
    keeps = [
        (12, 16),  # float32 weights and moments; gradients until the step ends
        (6, 8),
        (4, 8),  # moments on the host
        (12, 20),  # DDP's buckets hold the gradients once more
        (6, 8),  # half of everything
        (0, 0),
        (8, 10),  # half of bfloat16 weights and gradients, float32 masters and moments
        (1, 1),
    ]
    for i, (held, peak) in enumerate(keeps):
        name, world, more = jobs[i]
        extra = bucket if name == "zero3" else 0
        end, most = (each - extra for each in found[i])
        slack = 0.12 * PARAMETERS + (4 << 20)
        buckets = 4 * PARAMETERS if name == "ddp" else 0
        small = 2 * PARAMETERS * (name == "zero3" and "offload" in more)
        assert held * PARAMETERS <= end + 4096, (name, more)
        assert end <= held * PARAMETERS + buckets + small + slack, (name, more)
        assert most >= peak * PARAMETERS, (name, more)


def test_the_other_plans_are_recorded_and_leave_nothing(recorded):
    found = recorded("others", len(ready_plan_jobs.OTHERS))
    for i, (name, more) in enumerate(ready_plan_jobs.OTHERS):
        assert found[i][1] > 4 << 20, (name, more)
        before = found[i - 1][0] if i else 0
        assert found[i][0] <= before + (1 << 20), (name, more)


def test_one_rank_of_zero3_has_the_gradients_of_the_plain_model(monkeypatch):
    """Partitioning, gathering, releasing and the bucket move numbers, and change none."""
    import torch

    monkeypatch.setattr(zero3, "REDUCE_BUCKET", 40_000)
    monkeypatch.setattr(zero3, "PREFETCH_BUCKET", 20_000)
    monkeypatch.setattr(zero3, "REUSE_DISTANCE", 20_000)
    monkeypatch.setattr(zero3, "PERSISTENT", 100)
    sizes = {"layers": "2", "hidden": "64", "heads": "4", "ffn": "128", "vocab": "100"}
    given = options.parse({**sizes, "strategy": "zero3", "clip": "0", "optimizer": "sgd"})
    model = configs.load("custom", given)
    job = Job(device="cpu", options={})
    torch.manual_seed(0)
    plain = models.build(model, given, "cpu")
    sharded = zero3.Zero3(job, model, given)
    named = dict(plain.named_parameters())
    for name, parameter in sharded.model.named_parameters():
        known = sharded._known[id(parameter)]
        known.shard.copy_(named[name].detach().view(-1))
    for name, buffer in sharded.model.named_buffers():
        buffer.copy_(dict(plain.named_buffers())[name])
    ids = torch.randint(0, 100, (2, 16))
    for _ in range(2):  # the second time the order is known, and prefetched
        plain.zero_grad()
        loss = plain(input_ids=ids, labels=ids).loss
        loss.backward()
        again = sharded.model(input_ids=ids, labels=ids).loss
        sharded.backward(again)
        assert again.item() == pytest.approx(loss.item(), rel=1e-3)
        for name, parameter in sharded.model.named_parameters():
            known = sharded._known[id(parameter)]
            expected = named[name].grad.view(-1).float()
            error = (known.gradient.float() - expected).norm() / expected.norm()
            assert error < 0.02, name
            assert parameter.numel() == 0 or known.persistent
    assert sharded._live <= sum(k.numel for k in sharded._known.values() if k.persistent)


def test_sequences_beyond_learned_positions_are_refused():
    with pytest.raises(InvalidOption, match=r"seq=4096: 4,096 tokens, and opt-1\.3b has 2,048"):
        plans.find("opt-1.3b")(Job(device="cpu", options={"seq": "4096"}))
    with pytest.raises(InvalidOption, match=r"seq=2048: .*give at most 1,024"):
        plans.find("gpt2")(Job(device="cpu", options={"seq": "2048"}))


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("gpt2", {}, r"1,024 tokens \(gpt2's context of 1,024; --seq"),
        ("gpt2", {"workload": "rlhf"}, r" 952 tokens \(gpt2's context of 1,024 less .*\(72\)"),
        ("opt-350m", {}, r"2,048 tokens \(the default; --seq"),
    ],
)
def test_without_seq_a_plan_takes_what_the_model_has_room_for_and_says_so(name, given, words):
    job = Job(device="cpu", options=given)
    parsed = options.parse(given)
    found = plans._default_length(job, configs.load(name, parsed), parsed)
    assert re.search(words, job.facts["assumed_seq"])
    models.check_length(configs.load(name, parsed).build(), name, found.seq.most, "seq")


TINY = {"layers": "1", "hidden": "64", "heads": "4", "ffn": "128", "vocab": "100"}


@pytest.mark.parametrize("targets", ["nothing", "q_proj,nothing", "proj"])
def test_lora_targets_the_model_does_not_have_are_named(targets):
    given = options.parse({**TINY, "lora": "4", "lora-targets": targets})
    with pytest.raises(InvalidOption) as refused:
        models.build(configs.load("custom", given), given, "cpu")
    text = str(refused.value)
    assert text.startswith(f"lora-targets={targets}: this model has no '") and "\n" not in text
    assert "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj" in text


def test_lora_targets_by_name_or_by_path():
    for targets in ("q_proj,up_proj", "self_attn.q_proj"):
        given = options.parse({**TINY, "lora": "4", "lora-targets": targets})
        made = models.build(configs.load("custom", given), given, "cpu")
        adapted = [name for name, _ in made.named_parameters() if "lora_A" in name]
        assert len(adapted) == targets.count(",") + 1


def test_an_unknown_architecture_is_named_in_one_line():
    with pytest.raises(InvalidOption, match=r"'lama': .* \(did you mean 'llama'\?\)") as refused:
        configs.Model("mine", "lama", {}).build()
    assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(plans.PackageMissing, match=r'pip install "glake\[plan\]"'):
        plans.check("gpt2", {})
