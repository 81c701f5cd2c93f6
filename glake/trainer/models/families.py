"""What transformers calls the parts of Llama and OPT."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glake.errors import InvalidOption
from glake.trainer.models import sizes
from glake.trainer.models.decoder import Decoder
from glake.trainer.models.feed_forward import MLP, SwiGLU
from glake.trainer.models.leaf import Linear
from glake.trainer.models.norm import Norm
from glake.trainer.models.position import Rotary


@dataclass(frozen=True)
class Family:
    """read(config.json) is our config; write(config) is config.json's content, or {} if none.

    modules: our module -> theirs, "{}" standing for a block's number.
    """

    kind: str
    read: Callable[[Mapping[str, Any]], Decoder.Config]
    write: Callable[[Decoder.Config], dict[str, Any]]
    modules: Mapping[str, str]
    ignored: tuple[str, ...] = ()  # of theirs: buffers, and copies of tied weights

    def their_name(self, ours: str) -> str:
        return _renamed(ours, self.modules)

    def our_name(self, theirs: str) -> str | None:
        """None for what is no parameter."""
        if theirs.endswith(self.ignored):
            return None
        return _renamed(theirs, {value: key for key, value in self.modules.items()})


def _renamed(name: str, modules: Mapping[str, str]) -> str:
    module, _, last = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", module)
    at = number[1] if number else ""
    for source, target in modules.items():
        if module == source.replace("{}", at):
            return f"{target.replace('{}', at)}.{last}"
    raise InvalidOption(f"{name!r} has no counterpart; known modules: {', '.join(modules)}")


_LLAMA_MODULES = {
    "embedding": "model.embed_tokens",
    "blocks.{}.attention_norm": "model.layers.{}.input_layernorm",
    "blocks.{}.attention.query": "model.layers.{}.self_attn.q_proj",
    "blocks.{}.attention.key": "model.layers.{}.self_attn.k_proj",
    "blocks.{}.attention.value": "model.layers.{}.self_attn.v_proj",
    "blocks.{}.attention.output": "model.layers.{}.self_attn.o_proj",
    "blocks.{}.feed_forward_norm": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.feed_forward.gate": "model.layers.{}.mlp.gate_proj",
    "blocks.{}.feed_forward.up": "model.layers.{}.mlp.up_proj",
    "blocks.{}.feed_forward.down": "model.layers.{}.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}

_OPT_MODULES = {
    "embedding": "model.decoder.embed_tokens",
    "position": "model.decoder.embed_positions",
    "blocks.{}.attention_norm": "model.decoder.layers.{}.self_attn_layer_norm",
    "blocks.{}.attention.query": "model.decoder.layers.{}.self_attn.q_proj",
    "blocks.{}.attention.key": "model.decoder.layers.{}.self_attn.k_proj",
    "blocks.{}.attention.value": "model.decoder.layers.{}.self_attn.v_proj",
    "blocks.{}.attention.output": "model.decoder.layers.{}.self_attn.out_proj",
    "blocks.{}.feed_forward_norm": "model.decoder.layers.{}.final_layer_norm",
    "blocks.{}.feed_forward.up": "model.decoder.layers.{}.fc1",
    "blocks.{}.feed_forward.down": "model.decoder.layers.{}.fc2",
    "norm": "model.decoder.final_layer_norm",
}


def _must(described: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raises where a model differs from its family in a way that is not supported."""
    for key, value in fixed.items():
        if described.get(key, value) != value:
            raise InvalidOption(f"config.json: {key} = {described[key]!r}; known is {value!r}")


def _read_rotary(described: Mapping[str, Any]) -> Rotary.Config:
    """From rope_parameters (transformers 5), or rope_theta and rope_scaling (4)."""
    told = described.get("rope_parameters") or described.get("rope_scaling") or {}
    rotary = Rotary.Config(
        theta=float(told.get("rope_theta", described.get("rope_theta", 10000.0)))
    )
    kind = told.get("rope_type", told.get("type", "default"))
    if kind == "llama3":
        rotary.factor = float(told["factor"])
        rotary.slow_turns = float(told["low_freq_factor"])
        rotary.fast_turns = float(told["high_freq_factor"])
        rotary.trained_length = told["original_max_position_embeddings"]
    elif kind != "default":
        raise InvalidOption(f"config.json: rope_type = {kind!r}; known are 'default' and 'llama3'")
    return rotary


def _read_llama(described: Mapping[str, Any]) -> Decoder.Config:
    _must(described, {"hidden_act": "silu", "pretraining_tp": 1})
    heads = described["num_attention_heads"]
    shared = described.get("num_key_value_heads") or heads
    config = sizes.llama(
        described["num_hidden_layers"],
        described["hidden_size"],
        heads,
        described["intermediate_size"],
        key_value_heads=shared if shared != heads else None,
        vocabulary=described["vocab_size"],
        rotary=_read_rotary(described),
        tied=described.get("tie_word_embeddings", False),
    )
    config.set("block.attention.head_dim", described.get("head_dim"))
    for part, key in (("attention", "attention_bias"), ("feed_forward", "mlp_bias")):
        bias = described.get(key, False)
        config.get(f"block.{part}").visit(Linear.Config, lambda it, b=bias: it.set("bias", b))
    epsilon = described.get("rms_norm_eps", 1e-6)
    config.visit(Norm.Config, lambda norm: norm.set("epsilon", epsilon))
    return config


def _write_llama(config: Decoder.Config) -> dict[str, Any]:
    attention, feed_forward = config.block.attention, config.block.feed_forward
    rotary = attention.rotary
    if rotary is None or not isinstance(feed_forward, SwiGLU.Config):
        return {}
    turned: dict[str, Any] = {"rope_type": "default", "rope_theta": rotary.theta}
    if rotary.factor != 1.0:
        turned |= {
            "rope_type": "llama3",
            "factor": rotary.factor,
            "low_freq_factor": rotary.slow_turns,
            "high_freq_factor": rotary.fast_turns,
            "original_max_position_embeddings": rotary.trained_length,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocabulary,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "intermediate_size": feed_forward.hidden,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.key_value_heads or attention.heads,
        "head_dim": attention.head_dim or config.dim // attention.heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(rotary.trained_length * rotary.factor),
        "rms_norm_eps": config.norm.epsilon,
        "tie_word_embeddings": config.head is None,
        "attention_bias": getattr(attention.query, "bias", False),
        "mlp_bias": getattr(feed_forward.up, "bias", False),
        # Both spellings: transformers 5 reads the first, 4 the other two.
        "rope_parameters": turned,
        "rope_theta": rotary.theta,
        "rope_scaling": {k: v for k, v in turned.items() if k != "rope_theta"}
        if rotary.factor != 1.0
        else None,
    }


def _read_opt(described: Mapping[str, Any]) -> Decoder.Config:
    dim = described["hidden_size"]
    _must(
        described,
        {
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "word_embed_proj_dim": dim,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "tie_word_embeddings": True,
            "_remove_final_layer_norm": False,
        },
    )
    config = sizes.opt(described["num_hidden_layers"], dim, described["num_attention_heads"])
    config.vocabulary = described["vocab_size"]
    config.set("position.longest", described["max_position_embeddings"])
    config.set("block.feed_forward.hidden", described["ffn_dim"])
    return config


def _write_opt(config: Decoder.Config) -> dict[str, Any]:
    feed_forward, position = config.block.feed_forward, config.position
    if position is None or not isinstance(feed_forward, MLP.Config):
        return {}
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": config.vocabulary,
        "hidden_size": config.dim,
        "word_embed_proj_dim": config.dim,
        "num_hidden_layers": config.layers,
        "ffn_dim": feed_forward.hidden,
        "num_attention_heads": config.block.attention.heads,
        "max_position_embeddings": position.longest,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "tie_word_embeddings": True,
    }


FAMILIES = (
    Family("llama", _read_llama, _write_llama, _LLAMA_MODULES, ("rotary_emb.inv_freq",)),
    Family("opt", _read_opt, _write_opt, _OPT_MODULES, ("lm_head.weight",)),
)
