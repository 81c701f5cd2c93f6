"""What transformers calls the options and the parts of Llama and OPT."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glake.errors import InvalidOption
from glake.trainer.models import sizes
from glake.trainer.models.decoder import Decoder
from glake.trainer.models.leaf import Linear
from glake.trainer.models.norm import Norm
from glake.trainer.models.position import Rotary


@dataclass(frozen=True)
class Family:
    """Tables that are read in both directions, and functions for what no table can say.

    options: config.json's key -> our option. fixed: keys that have this value, if they are there.
    modules: our module -> theirs, "{}" standing for a block's number.
    """

    kind: str
    architecture: str
    smallest: Callable[[], Decoder.Config]  # the family's shape, whose options are then set
    options: Mapping[str, str]
    fixed: Mapping[str, Any]
    read_rest: Callable[[Decoder.Config, Mapping[str, Any]], None]
    write_rest: Callable[[Decoder.Config], dict[str, Any]]
    modules: Mapping[str, str]
    ignored: tuple[str, ...]  # of theirs: buffers, and copies of tied weights

    def read(self, described: Mapping[str, Any]) -> Decoder.Config:
        """Our config of config.json's content. KeyError, InvalidOption."""
        _must(described, self.fixed)
        config = self.smallest()
        for theirs, ours in self.options.items():
            config.set(ours, described[theirs])
        self.read_rest(config, described)
        return config

    def write(self, config: Decoder.Config) -> dict[str, Any]:
        """config.json's content. UnknownOption where the config lacks a part of the family's."""
        named = {theirs: config.get(ours) for theirs, ours in self.options.items()}
        kind = {"architectures": [self.architecture], "model_type": self.kind}
        return {**kind, **named, **self.fixed, **self.write_rest(config)}

    def their_name(self, ours: str) -> str:
        return _renamed(ours, self.modules)

    def our_name(self, theirs: str) -> str | None:
        """None for what is no parameter."""
        if theirs.endswith(self.ignored):
            return None
        return _renamed(theirs, {value: key for key, value in self.modules.items()})


def _must(described: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raises where a model differs from its family in a way that is not supported."""
    for key, value in fixed.items():
        if described.get(key, value) != value:
            raise InvalidOption(f"config.json: {key} = {described[key]!r}; known is {value!r}")


def _renamed(name: str, modules: Mapping[str, str]) -> str:
    module, _, last = name.rpartition(".")
    number = re.search(r"\.(\d+)\.", module)
    at = number[1] if number else ""
    for source, target in modules.items():
        if module == source.replace("{}", at):
            return f"{target.replace('{}', at)}.{last}"
    raise InvalidOption(f"{name!r} has no counterpart; known modules: {', '.join(modules)}")


_OPTIONS = {
    "num_attention_heads": "block.attention.heads",
    "num_hidden_layers": "layers",
    "hidden_size": "dim",
    "vocab_size": "vocabulary",
}
_ROTARY = {
    "factor": "factor",
    "low_freq_factor": "slow_turns",
    "high_freq_factor": "fast_turns",
    "original_max_position_embeddings": "trained_length",
}
_BIASES = {"attention_bias": "block.attention.query", "mlp_bias": "block.feed_forward.up"}


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


def _read_rotary(described: Mapping[str, Any]) -> Rotary.Config:
    """From rope_parameters (transformers 5), or rope_theta and rope_scaling (4)."""
    told = described.get("rope_parameters") or described.get("rope_scaling") or {}
    if not isinstance(told, Mapping):
        raise InvalidOption(f"config.json: rope_parameters (or rope_scaling) is {told!r}: no table")
    rotary = Rotary.Config(theta=told.get("rope_theta", described.get("rope_theta", 10000.0)))
    kind = told.get("rope_type", told.get("type", "default"))
    if kind == "llama3":
        for theirs, ours in _ROTARY.items():
            rotary.set(ours, told[theirs])
    elif kind != "default":
        raise InvalidOption(f"config.json: rope_type = {kind!r}; known are 'default' and 'llama3'")
    return rotary


def _read_llama(config: Decoder.Config, described: Mapping[str, Any]) -> None:
    attention = config.block.attention
    shared = described.get("num_key_value_heads") or attention.heads
    attention.set("key_value_heads", shared if shared != attention.heads else None)
    attention.set("head_dim", described.get("head_dim"))
    attention.rotary = _read_rotary(described)
    if described.get("tie_word_embeddings", False):
        config.head = None
    for key, projection in _BIASES.items():
        bias, part = described.get(key, False), config.get(projection.rpartition(".")[0])
        part.visit(Linear.Config, lambda it, bias=bias: it.set("bias", bias))
    epsilon = described.get("rms_norm_eps", 1e-6)
    config.visit(Norm.Config, lambda norm: norm.set("epsilon", epsilon))


def _write_llama(config: Decoder.Config) -> dict[str, Any]:
    attention, rotary = config.block.attention, config.block.attention.rotary
    turned: dict[str, Any] = {}
    if rotary is not None:
        scaled = None
        if rotary.factor != 1.0:
            scaled = {theirs: rotary.get(ours) for theirs, ours in _ROTARY.items()}
            scaled["rope_type"] = "llama3"
        turned = {
            "max_position_embeddings": int(rotary.trained_length * rotary.factor),
            # Both spellings: transformers 5 reads the first, 4 the other two.
            "rope_parameters": {"rope_theta": rotary.theta, **(scaled or {"rope_type": "default"})},
            "rope_theta": rotary.theta,
            "rope_scaling": scaled,
        }
    return {
        "num_key_value_heads": attention.key_value_heads or attention.heads,
        "head_dim": attention.head_dim or config.dim // attention.heads,
        "rms_norm_eps": config.norm.epsilon,
        "tie_word_embeddings": config.head is None,
        **{key: config.get(f"{projection}.bias") for key, projection in _BIASES.items()},
        **turned,
    }


def _read_opt(config: Decoder.Config, described: Mapping[str, Any]) -> None:
    _must(described, {"word_embed_proj_dim": config.dim})


FAMILIES = (
    Family(
        kind="llama",
        architecture="LlamaForCausalLM",
        smallest=lambda: sizes.llama(1, 1, 1, 1),
        options=_OPTIONS | {"intermediate_size": "block.feed_forward.hidden"},
        fixed={"hidden_act": "silu", "pretraining_tp": 1},
        read_rest=_read_llama,
        write_rest=_write_llama,
        modules=_LLAMA_MODULES,
        ignored=("rotary_emb.inv_freq",),
    ),
    Family(
        kind="opt",
        architecture="OPTForCausalLM",
        smallest=lambda: sizes.opt(1, 1, 1),
        options=_OPTIONS
        | {
            "ffn_dim": "block.feed_forward.hidden",
            "max_position_embeddings": "position.longest",
        },
        fixed={
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "tie_word_embeddings": True,
            "_remove_final_layer_norm": False,
        },
        read_rest=_read_opt,
        write_rest=lambda config: {"word_embed_proj_dim": config.dim},
        modules=_OPT_MODULES,
        ignored=("lm_head.weight",),
    ),
)
