"""Ready plans: what is refused and how, sequence lengths, routing. No torch, no transformers."""

from __future__ import annotations

import json
import random

import pytest

from glake.errors import InvalidOption, UnknownOption
from glake.trace import plans
from glake.trace.plans import configs, lengths, moe, options


def test_defaults_follow_the_world():
    assert options.parse({}).strategy == "single"
    assert options.parse({}, world=8).strategy == "fsdp2"
    given = options.parse({"kv_heads": "8", "recompute": "on", "seq": "4096"})
    assert (given.kv_heads, given.recompute, given.seq.most) == (8, "yes", 4096)


@pytest.mark.parametrize(
    ("given", "world", "words"),
    [
        ({"batch": "0"}, 1, ["batch=0", "from 1 to 4,096"]),
        ({"batch": "two"}, 1, ["batch=two", "whole number"]),
        ({"strategy": "fsdp"}, 1, ["strategy=fsdp", "single | ddp | fsdp2 | zero3"]),
        ({"recompute": "maybe"}, 1, ["recompute=maybe", "yes | no | reentrant"]),
        ({"clip": "-1"}, 1, ["clip=-1", "from 0 to"]),
        ({"clip": "nan"}, 1, ["clip=nan"]),
        ({"seq": "uniform:9-3"}, 1, ["seq=uniform:9-3", "9 is above 3"]),
        ({"seq": "normal:9"}, 1, ["no distribution 'normal'", "lognormal"]),
        ({"seq": "lognormal:9,99,1,9"}, 1, ["'99' is not a sigma"]),
        ({"seq": "0"}, 1, ["'0' is not a length"]),
        ({"strategy": "single"}, 4, ["strategy=single", "--world 1"]),
        ({"offload": "params"}, 1, ["offload=params", "fsdp2 or zero3"]),
        ({"strategy": "zero3", "precision": "fp32"}, 2, ["precision", "fsdp2"]),
        ({"workload": "serving"}, 2, ["workload=serving", "--world 1"]),
        ({"workload": "rlhf", "strategy": "zero3"}, 2, ["workload=rlhf", "fsdp2"]),
    ],
)
def test_a_wrong_value_is_named_with_what_would_do(given, world, words):
    with pytest.raises(InvalidOption) as refused:
        options.parse(given, world)
    for word in words:
        assert word in str(refused.value)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(UnknownOption, match=r"'batches' \(did you mean 'batch'\?\); it has work"):
        options.parse({"batches": "1"})
    with pytest.raises(UnknownOption, match="no option 'foo'; it has workload, seq"):
        options.parse({"foo": "1"})


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("llama-8b", {}, "did you mean 'llama3-8b'"),
        ("custom", {"layers": "2"}, "--hidden, --heads, --vocab"),
        ("opt-1.3b", {"kv-heads": "2"}, "grouped-query"),
        ("llama3-8b", {"heads": "48"}, "hidden=4096 is not a multiple of heads=48"),
        ("llama3-8b", {"kv-heads": "5"}, "heads=32 is not a multiple of kv-heads=5"),
        ("llama3-8b", {"arch": "opt"}, "arch goes with custom"),
        ("missing/config.json", {}, "cannot read"),
    ],
)
def test_a_model_that_cannot_be_is_refused(name, given, words):
    with pytest.raises((InvalidOption, UnknownOption), match=words):
        configs.load(name, options.parse(given))


def test_a_module_without_its_function_is_told_apart_from_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownOption, match=r"unknown model 'train' \(did you mean"):
        plans.check("train", {})
    (tmp_path / "jobs").mkdir()
    with pytest.raises(UnknownOption, match="unknown model 'jobs'"):
        plans.check("jobs", {})
    for file in ("train.py", "jobs/__init__.py", "jobs/long.py"):
        (tmp_path / file).touch()
    for name in ("train", "jobs", "jobs.long", "pytest"):
        with pytest.raises(UnknownOption, match=f"give MODULE:FUNCTION, such as {name}:make_step"):
            plans.check(name, {})
    with pytest.raises(UnknownOption, match="such as train:make_step"):
        plans.check("train.py", {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "'model_type'"),
        ('{"hidden_size": 8}', "'model_type'"),
        ('{"model_type": "llama", "quantization_config": {}}', "'quantization_config'"),
        ('{"model_type": "llama", "hidden_size": -64}', "'hidden_size': -64 is not a whole number"),
        ('{"model_type": "llama", "hidden_size": "4096"}', "'hidden_size': '4096' is not .*hidden"),
        ('{"model_type": "llama", "num_hidden_layers": 2.5}', "'num_hidden_layers': 2.5"),
        ('{"model_type": "llama", "vocab_size": true}', "'vocab_size': True"),
        ('{"model_type": "gpt2", "n_head": null}', "'n_head': None"),
        ('{"model_type": "llama", "intermediate_size": 9e99}', "from 1 to 1,048,576"),
    ],
)
def test_a_file_that_is_no_config_names_the_field(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InvalidOption, match=words):
        configs.load(str(path), options.parse({}))


def test_a_config_is_found_by_file_or_directory_and_resized(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = configs.table()["llama3-8b"]["config"] | {"torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    for name in (folder, folder / "config.json"):
        assert plans.is_plan(str(name))
        model = configs.load(str(name), options.parse({"layers": "3"}))
        assert (model.name, model.model_type) == ("my-model", "llama")
        assert model.config["num_hidden_layers"] == 3
        assert model.config["intermediate_size"] == 14336


def test_a_size_given_takes_the_place_of_a_wrong_one(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2", "n_embd": "wide", "n_head": 4, "n_inner": null}')
    model = configs.load(str(path), options.parse({"hidden": "64"}))
    assert model.config["n_embd"] == 64 and model.config["n_inner"] is None


def test_lengths_keep_the_text_they_were_given():
    for text in ("4096", "fixed:4096", "uniform:1-9"):
        assert lengths.parse(text).text == text


def test_lengths_are_the_same_for_a_seed_and_in_any_order():
    for text in ("uniform:10-5000", "lognormal:800,0.7,64,2048"):
        one, other = (lengths.parse(text).series(7, 8) for _ in range(2))
        assert [one(i) for i in range(50)] == [other(i) for i in reversed(range(50))][::-1]
        drawn = [one(i) for i in range(500)]
        assert all(each % 8 == 0 for each in drawn)
        assert len(set(drawn)) > 30
        assert max(drawn) <= 5000
        another = lengths.parse(text).series(8, 8)
        assert drawn != [another(i) for i in range(500)]
    middle = sorted(lengths.parse("lognormal:800,0.7,1,99999").series(1)(i) for i in range(999))
    assert 700 < middle[500] < 900


def test_lengths_of_a_file_come_in_its_order_and_again(tmp_path):
    path = tmp_path / "lengths"
    path.write_text("5\n9\n16\n")
    known = lengths.parse(f"file:{path}").series(0, 8)
    assert [known(i) for i in range(5)] == [8, 16, 16, 8, 16]
    path.write_text("5\nx\n")
    with pytest.raises(ValueError, match="'x'"):
        lengths.parse(f"file:{path}")


def test_token_counts_add_up_and_no_token_meets_an_expert_twice():
    chance = random.Random(3)
    spread = {}
    for routing in ("balanced", "skewed"):
        for tokens in (1, 7, 4096):
            counts = moe.token_counts(chance, tokens, 8, 2, routing)
            assert sum(counts) == 2 * tokens
            assert max(counts) <= tokens
        spread[routing] = max(counts) / (2 * tokens / 8)
    assert spread["balanced"] < 1.25 < spread["skewed"]


def test_the_list_names_every_model_and_its_source():
    rows = {row.name: row for row in plans.describe()}
    assert rows["llama3-8b"].parameters == 8_030_261_248
    assert all(row.source for row in rows.values())
    assert all(plans.is_plan(name) for name in rows)
