"""glake.TransformersCache: generate() gives the same tokens as with transformers' own cache."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GemmaConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
)
from transformers import MistralForCausalLM as Mistral
from transformers.cache_utils import DynamicLayer

import glake
from glake import _C, errors


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    _C.shutdown()
    for name, value in (("driver", "sim"), ("limit", "64MiB")):
        _C.configure(name, value)
    yield
    gc.collect()
    assert int(_C.stats()["allocated_bytes.all.current"]) == 0
    _C.shutdown()
    for name in ("driver", "limit"):
        _C.configure(name, "")


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 97}
    return LlamaForCausalLM(LlamaConfig(**config, max_position_embeddings=512, **changes)).eval()


IDS = torch.arange(1, 15).reshape(2, 7)  # 0 is padding
MODES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampled": {"do_sample": True, "num_return_sequences": 2},
}


def generate(model: Any, cache: Any, **mode: Any) -> list[list[int]]:
    torch.manual_seed(2)
    done = model.generate(
        IDS, past_key_values=cache, max_new_tokens=30, pad_token_id=0, eos_token_id=None, **mode
    )
    return done.tolist()


@pytest.mark.parametrize("mode", MODES)
def test_the_same_tokens(mode: str) -> None:
    model = llama()
    cache = glake.TransformersCache(model.config)
    assert generate(model, cache, **MODES[mode]) == generate(model, None, **MODES[mode])
    assert cache.get_seq_length() == 36
    assert int(_C.stats()["allocated_bytes.all.current"]) == 6 * (2 << 20)  # two pages a layer


def test_values_of_another_width_than_keys() -> None:
    torch.manual_seed(1)
    config = DeepseekV3Config(
        hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, n_group=1, topk_group=1,
        num_experts_per_tok=2, kv_lora_rank=16, q_lora_rank=24, qk_rope_head_dim=8,
        qk_nope_head_dim=16, v_head_dim=12, vocab_size=97, max_position_embeddings=512,
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config).eval()
    cache = glake.TransformersCache(config)
    assert generate(model, cache) == generate(model, None)
    layer = cache.layers[1]
    assert layer.keys.shape[-1] != layer.values.shape[-1]
    assert torch.equal(copy.deepcopy(cache).layers[1].values, layer.values)


def test_it_is_used_again_and_cropped() -> None:
    model = llama()
    cache = glake.TransformersCache(model.config)
    first = generate(model, cache)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert generate(model, cache) == first
    cache.crop(-20)
    assert cache.get_seq_length() == 16
    with torch.no_grad():
        again = model(torch.tensor(first)[:, 16:], past_key_values=cache).logits
        whole = model(torch.tensor(first)).logits
    torch.testing.assert_close(again, whole[:, 16:], rtol=1e-4, atol=1e-4)


def test_rows_of_the_batch() -> None:
    model = llama()
    cache = glake.TransformersCache(model.config)
    with torch.no_grad():
        model(IDS, past_key_values=cache)
    before = cache.layers[1].keys.clone()
    cache.batch_repeat_interleave(3)
    assert torch.equal(cache.layers[1].keys, before.repeat_interleave(3, dim=0))
    cache.batch_select_indices(torch.tensor([0, 5]))
    assert torch.equal(cache.layers[1].keys, before)


def test_it_is_copied_pickled_and_saved(tmp_path: Path) -> None:
    model = llama()
    cache = glake.TransformersCache(model.config)
    first = generate(model, cache)
    keys = cache.layers[2].keys.clone()
    torch.save(cache.layers[2].keys, tmp_path / "keys.pt")
    assert torch.equal(torch.load(tmp_path / "keys.pt"), keys)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert torch.equal(other.layers[2].keys, keys)
        other.layers[2].keys.zero_()
    assert torch.equal(cache.layers[2].keys, keys)
    cache.reset()
    assert generate(model, cache) == first


def test_after_reset_it_takes_other_shapes() -> None:
    model = llama()
    cache = glake.TransformersCache(model.config)
    with torch.no_grad():
        model(IDS, past_key_values=cache)
        with pytest.raises(errors.InvalidArgument, match=r"reset\(\) it first"):
            model(IDS[:1], past_key_values=cache)
        cache.reset()
        model(IDS[:1], past_key_values=cache)
    assert cache.layers[0].keys.shape == (1, 2, 7, 16)
    with torch.inference_mode():
        cache.reset()
        model(IDS, past_key_values=cache)
    with torch.no_grad():
        model(IDS, past_key_values=cache)
    assert cache.get_seq_length() == 14


def test_gradients_are_refused() -> None:
    model = llama()
    with pytest.raises(errors.InvalidArgument, match="for inference"):
        model(IDS, past_key_values=glake.TransformersCache(model.config))


def test_compiled_code_may_use_it() -> None:
    model = llama()
    cache, whole = glake.TransformersCache(model.config), model(IDS).logits
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        for first, last in ((0, 4), (4, 5), (5, 7)):
            found = compiled(IDS[:, first:last], past_key_values=cache).logits
            torch.testing.assert_close(found, whole[:, first:last], rtol=1e-4, atol=1e-4)


def test_layers_of_other_kinds_stay() -> None:
    config = MistralConfig(
        hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=2, vocab_size=97, sliding_window=16,
    )  # fmt: skip
    cache = glake.TransformersCache(config)
    assert all(isinstance(each, DynamicLayer) for each in cache.layers)
    model = Mistral(config).eval()
    assert generate(model, cache) == generate(model, None)


def test_too_long_a_text_is_named() -> None:
    model = llama()
    with pytest.raises(errors.InvalidArgument, match="from 0 to 20"):
        generate(model, glake.TransformersCache(model.config, tokens=20))


def test_no_room_is_out_of_memory() -> None:
    model = llama()
    with glake.empty("62MiB"), pytest.raises(errors.OutOfMemory):
        generate(model, glake.TransformersCache(model.config))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((3,), errors.WrongType),
        ((GemmaConfig(), 0), errors.InvalidArgument),
        ((GemmaConfig(), "many"), errors.WrongType),
    ],
)
def test_wrong_use(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        glake.TransformersCache(*arguments)
