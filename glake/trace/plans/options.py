"""The options of the ready plans, from ``Job.options`` and the command line. They are one typed
table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from glake import config
from glake.errors import InvalidOption, UnknownOption
from glake.hints import did_you_mean
from glake.trace.plans import lengths
from glake.trace.plans.lengths import Lengths


@dataclass(frozen=True)
class PlanOption(config.Option):
    """One row. Its name is the one of ``-o NAME=VALUE`` and of the flag --NAME."""

    bare: str | None = None
    """What the flag means without a value (``--recompute``); None: it needs a value."""


def _choice(*choices: str) -> tuple[Callable[[str], str], str]:
    return config.Choice(choices), " | ".join(choices)


def _count(low: int, high: int) -> tuple[Callable[[str], int], str]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not low <= int(text) <= high:
            raise ValueError(
                "out of range" if re.fullmatch(r"-?\d+", text) else "not a whole number"
            )
        return int(text)

    return parse, f"a whole number from {low:,} to {high:,}"


def _number(low: float, high: float) -> tuple[Callable[[str], float], str]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError("out of range")
        return value

    return parse, f"a number from {low:g} to {high:g}"


_WORDS = {"yes": True, "true": True, "1": True, "on": True}
_WORDS |= {"no": False, "false": False, "0": False, "off": False}


def _flag(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise ValueError("not one of them")
    return _WORDS[text.lower()]


def _recompute(text: str) -> str:
    if text == "reentrant":
        return text
    return "yes" if _flag(text) else "no"


def _targets(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    if not all(re.fullmatch(r"[\w.-]+", word) for word in words):
        raise ValueError("not module names separated by commas")
    return words


def _optional(parsed: tuple[Callable[[str], Any], str]) -> tuple[Callable[[str], Any], str]:
    parse, takes = parsed
    return (lambda text: parse(text) if text else None), takes


def _option(
    name: str, default: str, how: tuple[Callable[[str], Any], str], text: str
) -> PlanOption:
    bare = "yes" if how[1].startswith("yes") else None
    return PlanOption(name, default, how[0], how[1], text, bare=bare)


_LENGTHS = (lengths.parse, lengths.TAKES)
MOST_SIZE, MOST_WORDS = 1 << 20, 1 << 24
"""Limits of a model's sizes, and of its vocabulary."""
_SIZE = _optional(_count(1, MOST_SIZE))

OPTIONS: tuple[PlanOption, ...] = (
    _option("workload", "train", _choice("train", "serving", "rlhf"), "what a step does"),
    _option("seq", "2048", _LENGTHS, "tokens of a batch's sequences; of prompts when serving"),
    _option("multiple", "8", _count(1, 65536), "lengths are padded up to a multiple of this"),
    _option("batch", "1", _count(1, 4096), "sequences a micro-batch; most requests when serving"),
    _option("accumulate", "1", _count(1, 1024), "micro-batches a step"),
    _option(
        "strategy",
        "",
        _optional(_choice("single", "ddp", "fsdp2", "zero3")),
        "how the work is split; fsdp2 where the world is above 1, else single",
    ),
    _option("reshard", "yes", (_flag, "yes | no"), "fsdp2: free gathered weights after forward"),
    _option(
        "precision",
        "mixed",
        _choice("mixed", "bf16", "fp16", "fp32"),
        "mixed: weights and optimizer in float32, work in bfloat16; else all in that type",
    ),
    _option(
        "eager-attention",
        "no",
        (_flag, "yes | no"),
        "transformers' attention in plain operators, scores and all, in place of torch's kernels",
    ),
    _option(
        "recompute",
        "no",
        (_recompute, "yes | no | reentrant"),
        "recompute each block in backward (torch.utils.checkpoint)",
    ),
    _option("offload", "none", _choice("none", "optimizer", "params"), "what is kept on the host"),
    _option("lora", "0", _count(0, 4096), "rank of LoRA adapters (peft); 0: train every weight"),
    _option(
        "lora-targets",
        "attention",
        (_targets, "attention, all-linear, or module names separated by commas"),
        "the linear layers that get adapters",
    ),
    _option(
        "optimizer",
        "adamw",
        _choice("adamw", "adamw-fused", "adamw-loop", "sgd"),
        "adamw: torch's default on a GPU, foreach",
    ),
    _option("clip", "1.0", _number(0, 1e6), "gradient norm to clip to; 0: no clipping"),
    _option(
        "routing",
        "grouped",
        _choice("grouped", "balanced", "skewed"),
        "mixture of experts: one grouped kernel, or a loop over experts with drawn token counts",
    ),
    _option("output", "fixed:64", _LENGTHS, "serving, rlhf: tokens generated for a request"),
    _option("chunk", "512", _count(1, 1 << 20), "serving: most prompt tokens a forward"),
    _option("arrivals", "1.0", _number(0.01, 1024), "serving: mean requests that arrive a tick"),
    _option("ticks", "8", _count(1, 4096), "serving: forward passes a step"),
    _option("critic", "same", (str, "same, or a model's name"), "rlhf: critic and reward model"),
    _option("layers", "", _SIZE, "number of layers, in place of the model's"),
    _option("hidden", "", _SIZE, "width of the residual stream"),
    _option("heads", "", _SIZE, "attention heads"),
    _option("kv-heads", "", _SIZE, "key and value heads (grouped-query attention)"),
    _option("ffn", "", _SIZE, "width of the feed-forward layer"),
    _option("vocab", "", _optional(_count(1, MOST_WORDS)), "size of the vocabulary"),
    _option(
        "arch",
        "",
        _optional(_choice("llama", "gpt2", "opt", "gpt_neox", "mixtral")),
        "custom: the architecture whose sizes are given (llama)",
    ),
)

SIZES = ("layers", "hidden", "heads", "kv-heads", "ffn", "vocab")


@dataclass(frozen=True)
class PlanOptions:
    """The options in use, with a field for each row of ``OPTIONS`` ("-" is read as "_")."""

    workload: str
    seq: Lengths
    multiple: int
    batch: int
    accumulate: int
    strategy: str
    reshard: bool
    precision: str
    eager_attention: bool
    recompute: str
    offload: str
    lora: int
    lora_targets: tuple[str, ...]
    optimizer: str
    clip: float
    routing: str
    output: Lengths
    chunk: int
    arrivals: float
    ticks: int
    critic: str
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    arch: str | None

    def sizes(self) -> dict[str, int]:
        """The model sizes that were given, by option name."""
        found = {name: getattr(self, name.replace("-", "_")) for name in SIZES}
        return {name: value for name, value in found.items() if value is not None}


_BY_NAME = {option.name: option for option in OPTIONS}


def _value(option: PlanOption, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as bad:
        why = str(bad) if option.takes is lengths.TAKES else "it"
        why = f"{option.name}={text}: {why}" if why != "it" else f"{option.name}={text}"
        raise InvalidOption(f"{why}: option {option.name!r} takes {option.takes}") from bad


def parse(given: Mapping[str, str], world: int = 1) -> PlanOptions:
    """Reads options, each by name (``kv-heads`` or ``kv_heads``) with its value as text.

    Raises UnknownOption for a name that is not in the table, and InvalidOption for a value that the
    option does not take or that contradicts another one. Each says what to do.
    """
    texts = {option.name: option.default for option in OPTIONS}
    for key, text in given.items():
        name = key.replace("_", "-")
        if name not in _BY_NAME:
            hint = did_you_mean(name, _BY_NAME)
            raise UnknownOption(
                f"a ready plan has no option {key!r}{hint}; it has {', '.join(_BY_NAME)}"
            )
        texts[name] = text
    values = {name: _value(_BY_NAME[name], text) for name, text in texts.items()}
    options = PlanOptions(**{name.replace("-", "_"): value for name, value in values.items()})
    if not options.strategy:
        options = dataclasses.replace(options, strategy="fsdp2" if world > 1 else "single")
    _check(options, world)
    return options


def _check(options: PlanOptions, world: int) -> None:
    """Raises InvalidOption for options that contradict each other, and says what to do."""
    strategy = options.strategy
    if strategy == "single" and world > 1:
        raise InvalidOption(
            f"strategy=single uses one GPU, and the world is {world}: "
            "give --world 1, or strategy=ddp, fsdp2 or zero3"
        )
    if options.offload == "params" and strategy not in ("fsdp2", "zero3"):
        raise InvalidOption(
            f"offload=params needs strategy=fsdp2 or zero3, not {strategy}: "
            "with one replica a GPU, only offload=optimizer"
        )
    if strategy == "zero3" and options.precision not in ("mixed", "fp16"):
        raise InvalidOption(
            f"strategy=zero3 keeps float32 masters beside 16-bit weights: precision is mixed "
            f"(bfloat16) or fp16, not {options.precision}; strategy=fsdp2 has the others"
        )
    if options.workload == "serving" and (strategy != "single" or options.lora):
        raise InvalidOption(
            "workload=serving runs one replica on one GPU without adapters: "
            "give --world 1 and leave out strategy and lora"
        )
    if options.workload == "rlhf" and strategy not in ("single", "ddp", "fsdp2"):
        raise InvalidOption(f"workload=rlhf takes strategy=single, ddp or fsdp2, not {strategy}")
