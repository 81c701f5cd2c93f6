"""Reads and writes checkpoint directories of `transformers`' Llama, as safetensors.

Tables map keys of config.json to options of our model, and modules of transformers to ours.
Parameters keep their last name (weight, bias). Weights are read one at a time, so that a model
larger than a process's memory can be read into shards.
"""

from __future__ import annotations

import copy
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glake import arguments, extras
from glake.errors import (
    InvalidArgument,
    InvalidOption,
    NotExported,
    UnknownOption,
    WrongType,
)
from glake.trainer.configurable import told_of
from glake.trainer.models import sizes
from glake.trainer.models.decoder import Decoder
from glake.trainer.models.leaf import Norm
from glake.trainer.models.lora import LoRA
from glake.trainer.models.position import Rotary

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_OPTIONS = {
    "num_attention_heads": "block.attention.heads",
    "num_hidden_layers": "layers",
    "hidden_size": "dim",
    "vocab_size": "vocabulary",
    "intermediate_size": "block.feed_forward.hidden",
}
_ROTARY = {
    "factor": "factor",
    "low_freq_factor": "slow_turns",
    "high_freq_factor": "fast_turns",
    "original_max_position_embeddings": "trained_length",
}
_FIXED = {
    "model_type": "llama",
    "hidden_act": "silu",
    "pretraining_tp": 1,
    "attention_bias": False,
    "mlp_bias": False,
}
# Options of our model that a checkpoint leaves out or writes in another form.
_FREE = ("std", "trainable", "dtype", "loss_rows", "key_value_heads", "head_dim", "rotary.longest")
_MODULES = {
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


def _modules(layers: int) -> dict[str, str]:
    """Our modules -> those of transformers."""
    return {
        ours.replace("{}", str(number)): theirs.replace("{}", str(number))
        for number in range(layers)
        for ours, theirs in _MODULES.items()
    }


def _renamed(name: str, modules: Mapping[str, str]) -> str:
    module, _, last = name.rpartition(".")
    if module not in modules:
        raise InvalidOption(f"{name!r} has no counterpart; known modules: {', '.join(_MODULES)}")
    return f"{modules[module]}.{last}"


# config.json


def read_config(directory: str | Path) -> Decoder.Config:
    """The config, as ours, of the model in a directory.

    Args:
        directory: a checkpoint of transformers.

    Raises:
        WrongType: no path.
        InvalidArgument: there is no such checkpoint, or it is broken.
        InvalidOption: a model of another kind.
    """
    path = _folder(directory) / "config.json"
    try:
        described: Any = json.loads(path.read_text("utf-8"))
        if isinstance(described, dict):
            with told_of(f"{path}: "):
                return _config_of(described)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}: no checkpoint directory") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is no JSON: {error}") from None
    except KeyError as error:
        raise InvalidArgument(f"{path} lacks {error}") from None
    raise InvalidArgument(f"{path} is no JSON object")


def _folder(directory: str | Path) -> Path:
    """Raises WrongType for no path, and InvalidArgument for one that no folder has."""
    given = arguments.path("a checkpoint's folder", directory)
    if "\0" in given:
        raise InvalidArgument(f"a checkpoint's folder {given!r}: no path has a NUL")
    return Path(given)


def _config_of(described: Mapping[str, Any]) -> Decoder.Config:
    for key, value in _FIXED.items():
        if described.get(key, value) != value:
            raise InvalidOption(f"{key} = {described[key]!r}; known is {value!r}")
    config = sizes.llama(1, 1, 1, 1, tied=bool(described.get("tie_word_embeddings", False)))
    for theirs, ours in _OPTIONS.items():
        config.set(ours, described[theirs])
    attention = config.block.attention
    shared = described.get("num_key_value_heads") or attention.heads
    attention.set("key_value_heads", shared if shared != attention.heads else None)
    attention.set("head_dim", described.get("head_dim"))
    attention.rotary = _rotary_of(described)
    attention.rotary.longest = described.get("max_position_embeddings")
    epsilon = described.get("rms_norm_eps", 1e-6)
    config.visit(Norm.Config, lambda norm: norm.set("epsilon", epsilon))
    return config


def _rotary_of(described: Mapping[str, Any]) -> Rotary.Config:
    """Reads rope_parameters (transformers 5), or rope_theta and rope_scaling (4)."""
    told = described.get("rope_parameters") or described.get("rope_scaling") or {}
    if not isinstance(told, Mapping):
        raise InvalidOption(f"rope_parameters (or rope_scaling) is {told!r}: no table")
    rotary = Rotary.Config(theta=told.get("rope_theta", described.get("rope_theta", 10000.0)))
    kind = told.get("rope_type", told.get("type", "default"))
    if kind == "llama3":
        for theirs, ours in _ROTARY.items():
            rotary.set(ours, told[theirs])
    elif kind != "default":
        raise InvalidOption(f"rope_type = {kind!r}; known are 'default' and 'llama3'")
    return rotary


def _described(plain: Decoder.Config) -> dict[str, Any]:
    """The content of config.json. Raises InvalidOption if it does not read back as the same
    model."""
    try:
        described = _description(plain)
        read = _config_of(described)
        differs = [path for path in plain.diff(read) if not path.endswith(_FREE)]
    except UnknownOption:
        differs = ["its parts"]
    if differs:
        raise InvalidOption(f"this model has no form in transformers: {_some(differs)} differ")
    return described


def _description(config: Decoder.Config) -> dict[str, Any]:
    attention, rotary = config.block.attention, config.block.attention.rotary or Rotary.Config()
    scaled = None
    if rotary.factor != 1.0:
        scaled = {theirs: rotary.get(ours) for theirs, ours in _ROTARY.items()}
        scaled["rope_type"] = "llama3"
    return {
        "architectures": ["LlamaForCausalLM"],
        **_FIXED,
        **{theirs: config.get(ours) for theirs, ours in _OPTIONS.items()},
        "num_key_value_heads": attention.key_value_heads or attention.heads,
        "head_dim": attention.head_dim or config.dim // attention.heads,
        "rms_norm_eps": config.norm.epsilon,
        "tie_word_embeddings": config.head is None,
        "max_position_embeddings": rotary.longest or int(rotary.trained_length * rotary.factor),
        # Both spellings are written. transformers 5 reads the first, and transformers 4 the other
        # two.
        "rope_parameters": {"rope_theta": rotary.theta, **(scaled or {"rope_type": "default"})},
        "rope_theta": rotary.theta,
        "rope_scaling": scaled,
    }


# Weights


def read_weights(directory: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Yields our name and the value of each parameter, one by one, on the CPU."""
    directory, tensors = Path(directory), _safetensors()
    config = read_config(directory)
    names = {theirs: ours for ours, theirs in _modules(config.layers).items()}
    # Left out are a buffer of old checkpoints, and the tied weights that a file may hold twice.
    skipped = ("rotary_emb.inv_freq", *(["lm_head.weight"] if config.head is None else []))
    for path in _files(directory):
        try:
            with tensors.safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    if not name.endswith(skipped):
                        yield _renamed(name, names), file.get_tensor(name)
        except tensors.SafetensorError as error:
            raise InvalidArgument(f"{path} is damaged or cut short: {error}") from None


def matched(
    config: Decoder.Config, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights by the names of the model's parameters, each once. If a projection has
    LoRA beside it, its weights are those of the base. Raises InvalidArgument."""
    shapes = _shapes(_plain(config))
    names = {name.replace(".base.", "."): name for name in _shapes(config)}
    for name, value in _each_once(weights, shapes):
        yield names[name], value


@torch.no_grad()
def load_weights(model: Decoder, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copies weights into a model's parameters. Each must come exactly once, and fit."""
    parameters = dict(model.named_parameters())
    for name, value in matched(model.config, weights):
        parameters[name].copy_(value)


def load(directory: str | Path) -> Decoder:
    """The model in a directory, with its weights, on the current default device.

    Args:
        directory: a checkpoint of transformers.

    Raises:
        WrongType: no path.
        InvalidArgument: no such checkpoint, or weights that do not fit it.
        InvalidOption: a model of another kind.
    """
    with torch.device("meta"):
        model: Decoder = read_config(directory).build()
    model.to_empty(device=torch.get_default_device())
    load_weights(model, read_weights(directory))
    return model


def check(directory: str | Path, config: Decoder.Config, again: bool = False) -> None:
    """Checks, before training, whether write() could write such a model there. Raises InvalidOption
    if transformers has no form for the model. Raises NotExported if the folder takes no file, or
    has a model already. With `again` that model may be the same job's."""
    _described(_plain(config))
    _safetensors()
    folder = Path(directory).expanduser()
    for name in () if again else (_WHOLE, _INDEX, "config.json"):
        if os.path.lexists(there := folder / name):
            raise NotExported(
                f"{there} is there already, and would be overwritten: name another folder to "
                "export to, or remove it"
            )
    try:
        # A new name, because other ranks try at the same time, and a job that was killed while it
        # exported has left files in `.part`.
        fresh = folder / f".part-{secrets.token_hex(8)}"
        fresh.mkdir(parents=True)
        fresh.rmdir()
    except OSError as error:
        raise NotExported(
            f"no model can be written to {directory}: {error.strerror}; name another folder"
        ) from None


def write(
    directory: str | Path, config: Decoder.Config, weights: Iterable[tuple[str, Tensor]]
) -> None:
    """Writes a model for transformers' from_pretrained(). LoRA is merged into the weights.

    A checkpoint that is there stays as it is until the new one is whole.

    Args:
        directory: where to write; it is made if it does not exist.
        config: of the model.
        weights: our names and whole parameters, as named_parameters() yields them, in any order.

    Raises:
        WrongType: no path, or no config.
        NotExported: the file system refuses it.
        InvalidArgument: weights that are not the model's.
        InvalidOption: a model that transformers has no form of.
    """
    if not isinstance(config, Decoder.Config):
        raise WrongType(f"a model's config is a Decoder.Config, not {arguments.type_name(config)}")
    directory, plain = _folder(directory).expanduser(), _plain(config)
    described, names = _described(plain), _modules(config.layers)
    tensors, fresh = _safetensors(), directory / ".part"
    # These are copies, because a given value may be a view that the next one overwrites.
    held = {
        _renamed(name, names): value.detach().to("cpu", copy=True).contiguous()
        for name, value in _each_once(_merged(config, weights), _shapes(plain))
    }
    described["dtype"] = str(next(iter(held.values())).dtype).removeprefix("torch.")
    try:
        try:
            fresh.mkdir(parents=True, exist_ok=True)
            tensors.torch.save_file(held, fresh / _WHOLE, metadata={"format": "pt"})
            text = json.dumps(described, indent=2)
            (fresh / "config.json").write_text(f"{text}\n", "utf-8")
            (directory / _INDEX).unlink(missing_ok=True)  # of an earlier model in several files
            for name in (_WHOLE, "config.json"):
                os.replace(fresh / name, directory / name)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except (OSError, tensors.SafetensorError) as error:
        raise NotExported(
            f"the model could not be written to {directory}: {error}. What was there is as it was; "
            "make room, or name another folder"
        ) from error


def _merged(
    config: Decoder.Config, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """The weights, with base + scale * up @ down if there is LoRA."""
    with torch.device("meta"):
        modules = config.build().named_modules()
    scales = {name: module.scale for name, module in modules if isinstance(module, LoRA)}
    waiting: dict[str, dict[str, Tensor]] = {}
    for name, value in weights:
        above, _, part = name.removesuffix(".weight").rpartition(".")
        if above not in scales or not name.endswith(".weight"):
            yield name.replace(".base.", "."), value
            continue
        parts = waiting.setdefault(above, {})
        parts[part] = value
        if len(parts) == 3:
            base = waiting.pop(above)["base"]
            change = parts["up"].float() @ parts["down"].float() * scales[above]
            yield f"{above}.weight", (base.float() + change).to(base.dtype)


def _each_once(
    weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, torch.Size]
) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights. Raises InvalidArgument for a weight that is unknown, has a wrong shape,
    comes twice or is missing."""
    left = dict(shapes)
    for name, value in weights:
        if name not in left:
            raise InvalidArgument(f"the model has no parameter {name!r}, or it came twice")
        shape = left.pop(name)
        if value.shape != shape:
            raise InvalidArgument(f"{name} is {list(value.shape)} there and {list(shape)} here")
        yield name, value
    if left:
        raise InvalidArgument(f"no weights for {len(left)} parameters: {_some(left)}")


def _plain(config: Decoder.Config) -> Decoder.Config:
    """The config without LoRA."""
    plain: Decoder.Config = copy.deepcopy(config).visit(LoRA.Config, lambda lora: lora.base)
    return plain


def _shapes(config: Decoder.Config) -> dict[str, torch.Size]:
    """The shapes of the model's parameters."""
    with torch.device("meta"):
        return {name: own.shape for name, own in config.build().named_parameters()}


def _safetensors() -> Any:
    need = "reading or writing a checkpoint of transformers"
    extras.needed("safetensors.torch", need, "safetensors", "trainer")
    return sys.modules["safetensors"]


def _files(directory: Path) -> list[Path]:
    """The files that hold the weights. An index may not name files in other folders."""
    index, names = directory / _INDEX, [_WHOLE]
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidArgument(f"{index} is no index of files by their tensors") from None
    for name in names:
        if Path(name).name != name:
            raise InvalidArgument(f"{index} names the file {name!r}: none but those beside it")
        if not (directory / name).exists():
            raise InvalidArgument(f"{directory} has no {name}; weights must be safetensors")
    return [directory / name for name in names]


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
