"""Model sizes: by name, from a local HuggingFace config.json, or given one by one. Nothing is
downloaded."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glake import extras
from glake.errors import InvalidOption, UnknownOption
from glake.hints import did_you_mean
from glake.trace.plans.options import MOST_SIZE, MOST_WORDS, PlanOptions

CUSTOM = "custom"
_TABLE = Path(__file__).with_name("configs.json")
_LONGEST = 300  # characters of another package's error


@dataclass(frozen=True)
class Model:
    """A model's name, and its HuggingFace config as keyword arguments (``model_type`` is
    separate)."""

    name: str
    model_type: str
    config: dict[str, Any]

    def build(self) -> Any:
        """The ``transformers`` config object.

        Raises PackageMissing without transformers, InvalidOption for a model type or for sizes
        that transformers does not take.
        """
        transformers = require("transformers")
        known = transformers.CONFIG_MAPPING
        if self.model_type not in known:
            hint = did_you_mean(self.model_type, known)
            raise InvalidOption(
                f"{self.name}: model_type {self.model_type!r}: transformers "
                f"{transformers.__version__} has no such architecture{hint}; write the job as a "
                "make_step of your own (docs/plan.md), or take a newer transformers"
            )
        try:
            with quiet():
                return transformers.AutoConfig.for_model(self.model_type, **self.config)
        except Exception as bad:  # transformers' own validation errors share no class
            raise InvalidOption(
                f"{self.name}: transformers refuses this config: {one_line(bad)}"
            ) from bad


def one_line(error: BaseException) -> str:
    """The text of another package's error, made to fit into one line of a message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def require(package: str) -> Any:
    """Imports transformers or peft. Raises PackageMissing with the command that installs it."""
    extra = {"transformers": "plan", "peft": "lora"}[package]
    return extras.needed(package, "this plan", package, extra)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context that hides transformers' advice about weights and tokens, because nobody loads
    these."""
    logging = require("transformers").utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """The shipped table, configs.json: name -> {parameters, source, config}."""
    rows: dict[str, dict[str, Any]] = json.loads(_TABLE.read_text())
    return rows


def is_path(name: str) -> bool:
    """Whether a target names a config file (or a directory with one) and not a model."""
    return name.endswith(".json") or os.sep in name or Path(name, "config.json").is_file()


# For each architecture the fields of the sizes that can be given one by one.
_FIELDS = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv-heads": ("num_key_value_heads", None),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size", "vocab_size"),
}


def _field(name: str, model_type: str) -> str | None:
    if model_type == "opt" and name == "ffn":
        return "ffn_dim"
    if name == "kv-heads" and model_type in ("opt", "gpt2", "gpt_neox"):
        return None
    return _FIELDS[name][model_type == "gpt2"]


# Fields that may be null. transformers then computes them from the others.
_DERIVED = ("kv-heads", "ffn")


def _check_fields(path: Path, model_type: str, config: dict[str, Any]) -> None:
    """Raises InvalidOption for sizes in a config file that no model can have."""
    for name in _FIELDS:
        key = _field(name, model_type)
        if key is None or key not in config or (config[key] is None and name in _DERIVED):
            continue
        value, most = config[key], MOST_WORDS if name == "vocab" else MOST_SIZE
        if type(value) is not int or not 1 <= value <= most:
            raise InvalidOption(
                f"{path}: field {key!r}: {value!r:.60} is not a whole number from 1 to {most:,}; "
                f"correct it, or give --{name}"
            )


def _resized(name: str, model_type: str, config: dict[str, Any], sizes: dict[str, int]) -> Model:
    """The config with the given sizes. Sizes that depend on these are changed, too."""
    config = dict(config)
    for size, value in sizes.items():
        key = _field(size, model_type)
        if key is None:
            raise InvalidOption(
                f"{size}={value}: {name} ({model_type}) has no grouped-query attention: "
                "leave it out"
            )
        config[key] = value
    if "hidden" in sizes:
        config.pop("head_dim", None)
        if model_type == "opt":
            config["word_embed_proj_dim"] = sizes["hidden"]
        if "ffn" not in sizes and model_type != "gpt2":
            follow = 8 * sizes["hidden"] // 3 if model_type == "llama" else 4 * sizes["hidden"]
            config[_field("ffn", model_type) or ""] = -(-follow // 256) * 256
    if "heads" in sizes and "kv-heads" not in sizes and "num_key_value_heads" in config:
        config["num_key_value_heads"] = min(config["num_key_value_heads"], sizes["heads"])
    _check_heads(name, model_type, config)
    return Model(name, model_type, config)


def _check_heads(name: str, model_type: str, config: dict[str, Any]) -> None:
    hidden = config.get(_field("hidden", model_type) or "")
    heads = config.get(_field("heads", model_type) or "")
    groups = config.get("num_key_value_heads") or heads
    if hidden and heads and hidden % heads and "head_dim" not in config:
        raise InvalidOption(f"{name}: hidden={hidden} is not a multiple of heads={heads}")
    if heads and heads % groups:
        raise InvalidOption(f"{name}: heads={heads} is not a multiple of kv-heads={groups}")


def _custom(options: PlanOptions) -> Model:
    sizes = options.sizes()
    missing = [name for name in ("layers", "hidden", "heads", "vocab") if name not in sizes]
    if missing:
        raise InvalidOption(
            f"custom needs the sizes {', '.join('--' + name for name in missing)} "
            "(and takes --ffn, --kv-heads and --arch)"
        )
    arch = options.arch or "llama"
    config: dict[str, Any] = {"tie_word_embeddings": arch in ("gpt2", "opt")}
    if arch in ("llama", "mixtral"):
        config["num_key_value_heads"] = sizes.get("kv-heads", sizes["heads"])
    return _resized(CUSTOM, arch, config, sizes)


def _from_file(name: str, sizes: dict[str, int]) -> Model:
    path = Path(name, "config.json") if Path(name).is_dir() else Path(name)
    try:
        config = json.loads(path.read_text())
    except OSError as bad:
        raise InvalidOption(f"cannot read the config {str(path)!r}: {bad}") from bad
    except (json.JSONDecodeError, UnicodeDecodeError) as bad:
        raise InvalidOption(f"{path}: not JSON: {bad}") from bad
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InvalidOption(f"{path}: no field 'model_type': not a HuggingFace config.json")
    if "quantization_config" in config:
        raise InvalidOption(
            f"{path}: field 'quantization_config': quantised weights are not modelled; remove it "
            "to plan with 16- or 32-bit weights"
        )
    model_type = config.pop("model_type")
    for key in ("architectures", "transformers_version", "auto_map", "torch_dtype", "dtype"):
        config.pop(key, None)
    given = {_field(name, model_type) for name in sizes}
    _check_fields(path, model_type, {k: v for k, v in config.items() if k not in given})
    label = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return _resized(label, model_type, config, sizes)


def load(name: str, options: PlanOptions) -> Model:
    """A model from a name of the table, ``custom``, or the path of a config.json (or of its
    directory).

    Sizes that are given as options replace the model's own. Raises UnknownOption for a name that is
    none of these, and InvalidOption for a file that is no config and for impossible sizes.
    """
    if name == CUSTOM:
        return _custom(options)
    if options.arch is not None:
        raise InvalidOption(f"arch={options.arch}: {name} has its own; arch goes with custom")
    if name in table():
        config = dict(table()[name]["config"])
        return _resized(name, config.pop("model_type"), config, options.sizes())
    if is_path(name):
        return _from_file(name, options.sizes())
    hint = did_you_mean(name, table(), 0.4)
    raise UnknownOption(
        f"unknown model {name!r}{hint}; known: {', '.join(table())}, custom with sizes, or the "
        "path of a HuggingFace config.json"
    )
