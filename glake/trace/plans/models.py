"""Builds a plan's model from transformers' own module code, and LoRA adapters with peft's."""

from __future__ import annotations

from typing import Any

from glake.errors import InvalidOption
from glake.trace.plans import moe
from glake.trace.plans.configs import Model, one_line, quiet, require
from glake.trace.plans.options import PlanOptions

_LORA_ALPHA = 2  # times the rank; a scale changes no allocation
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "query_key_value", "c_attn")


def dtypes(options: PlanOptions) -> tuple[Any, Any]:
    """The types of the weights, and of the computation."""
    import torch

    if options.precision == "mixed":
        frozen = options.lora > 0 or options.workload == "serving" or options.strategy == "zero3"
        return (torch.bfloat16 if frozen else torch.float32), torch.bfloat16
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    return kind[options.precision], kind[options.precision]


def check_length(config: Any, name: str, tokens: int, option: str) -> None:
    """Raises InvalidOption if the model has fewer learned positions than ``tokens``. A GPU would
    stop there."""
    if config.model_type not in ("opt", "gpt2"):
        return
    most = config.max_position_embeddings
    if tokens > most:
        raise InvalidOption(
            f"{option}: {tokens:,} tokens, and {name} has {most:,} learned positions: "
            f"give at most {most:,}, or another model"
        )


def build(
    model: Model, options: PlanOptions, device: str, *, trainable: bool = True, head: str = "lm"
) -> Any:
    """The model on ``device`` ("meta" for weights that are made once they are sharded).

    ``head`` is lm, or value for a score of each token (critic and reward models). If ``trainable``
    is false, no weight requires a gradient and dropout is off. Raises PackageMissing, and
    InvalidOption for a model that transformers does not build.
    """
    import torch

    transformers = require("transformers")
    config = model.build()
    config.use_cache = False
    if moe.is_moe(config):
        moe.check(options, dtypes(options))
    experts = {"experts_implementation": moe.implementation(options)} if moe.is_moe(config) else {}
    with quiet(), torch.device(device):
        try:
            made = transformers.AutoModelForCausalLM.from_config(
                config,
                dtype=dtypes(options)[0],
                attn_implementation="eager" if options.eager_attention else "sdpa",
                **experts,
            )
        except (ValueError, KeyError) as bad:
            raise InvalidOption(
                f"{model.name}: transformers does not build it: {one_line(bad)}"
            ) from bad
    if head == "value":
        _score_tokens(made)
    if not trainable:
        return made.eval().requires_grad_(False)
    if options.lora and head == "lm":
        made = _with_adapters(made, options)
    if options.recompute != "no":
        _recompute(made, options.recompute == "reentrant" or options.strategy == "zero3")
    return made.train()


def _score_tokens(model: Any) -> None:
    """Replaces the vocabulary's head by a critic's, with one number for each token."""
    import torch

    old = model.get_output_embeddings()
    weight = old.weight
    head = torch.nn.Linear(weight.shape[1], 1, bias=False, device=weight.device, dtype=weight.dtype)
    model.set_output_embeddings(head)


def _recompute(model: Any, reentrant: bool) -> None:
    enable = getattr(model, "activation_checkpointing_enable", None)
    enable = enable or model.gradient_checkpointing_enable  # transformers before 5.2x
    enable({"use_reentrant": reentrant})


def _targets(model: Any, options: PlanOptions) -> Any:
    if options.lora_targets == ("all-linear",):
        return "all-linear"
    if options.lora_targets != ("attention",):
        _check_targets(model, options.lora_targets)
        return list(options.lora_targets)
    leaves = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    found = [name for name in _ATTENTION if name in leaves]
    if not found:
        raise InvalidOption(
            "lora-targets=attention: this model has none of "
            f"{', '.join(_ATTENTION)}; name its linear layers, or all-linear"
        )
    return found


def _check_targets(model: Any, targets: tuple[str, ...]) -> None:
    """Checks all names. peft accepts a list if one of its names is found, so it would overlook a
    mistyped one."""
    linear = set()
    missing = dict.fromkeys(targets)
    for name, module in model.named_modules():
        for target in targets:
            if name == target or name.endswith(f".{target}"):
                missing.pop(target, None)
        if type(module).__name__ in ("Linear", "Conv1D"):  # gpt2's is transformers' Conv1D
            linear.add(name.rpartition(".")[2])
    if missing:
        raise InvalidOption(
            f"lora-targets={','.join(targets)}: this model has no {next(iter(missing))!r}; its "
            f"linear layers are {', '.join(sorted(linear))} (or give attention, all-linear)"
        )


def _with_adapters(model: Any, options: PlanOptions) -> Any:
    peft = require("peft")
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=options.lora,
        lora_alpha=_LORA_ALPHA * options.lora,
        target_modules=_targets(model, options),
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    # FSDP2 gathers a block's weights in one type. Without FSDP2, peft trains its adapters in
    # float32.
    widen = options.strategy in ("single", "ddp") and options.precision == "mixed"
    try:
        return peft.get_peft_model(model, settings, autocast_adapter_dtype=widen)
    except ValueError as bad:
        names = ",".join(options.lora_targets)
        raise InvalidOption(f"lora-targets={names}: peft refuses it: {one_line(bad)}") from bad


def blocks(model: Any) -> list[Any]:
    """The model's transformer blocks, in order. Each is sharded and recomputed as one."""
    names = set()
    for module in model.modules():
        names |= set(getattr(module, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]
