"""Ready plans: training, serving and RLHF of language models, built from transformers' own code.

``find(name)`` gives the ``make_step`` of a model. ``describe()`` lists the models, and ``OPTIONS``
the options. Importing this needs neither torch nor transformers.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

from glake.errors import PackageMissing, UnknownOption
from glake.trace.plans import configs, lengths, options
from glake.trace.plans.options import OPTIONS, PlanOption, PlanOptions

__all__ = ["OPTIONS", "PackageMissing", "PlanOption", "PlanOptions", "Row", "describe", "find"]

Step = Callable[[int], None]


@dataclass(frozen=True)
class Row:
    """A line of the list of ready plans. ``parameters`` is None if the sizes must be given."""

    name: str
    parameters: int | None
    source: str


def describe() -> list[Row]:
    """The models that have names, and the sources of their sizes."""
    rows = [Row(name, row["parameters"], row["source"]) for name, row in configs.table().items()]
    rows.append(Row(configs.CUSTOM, None, "sizes given: --layers --hidden --heads --vocab ..."))
    rows.append(Row("path/to/config.json", None, "a local HuggingFace config"))
    return rows


def is_plan(name: str) -> bool:
    """Whether a target names a ready plan: a model of the table, custom, or a config file."""
    return name == configs.CUSTOM or name in configs.table() or configs.is_path(name)


def _is_module(name: str) -> bool:
    """Whether there is such a module in the current directory, where a recording looks first, or,
    if its name has no dot, on Python's path. Nothing is imported."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    place = os.path.join(*parts)
    if os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__init__.py")):
        return True
    found = PathFinder.find_spec(name) if len(parts) == 1 else None
    return found is not None and found.origin is not None  # None: a folder without __init__.py


def check(name: str, given: dict[str, str], world: int = 1) -> PlanOptions:
    """Checks a plan's name and options without building anything, before a child is started.

    Raises UnknownOption, InvalidOption or PackageMissing. Each says what to do.
    """
    module = name.removesuffix(".py")
    if not is_plan(name) and _is_module(module):
        raise UnknownOption(
            f"target {name!r} is no ready plan but a module: give MODULE:FUNCTION, such as "
            f"{module}:make_step"
        )
    parsed = options.parse(given, world)
    configs.load(name, parsed)
    configs.require("transformers")
    if parsed.lora:
        configs.require("peft")
    return parsed


def _default_length(job: Any, model: configs.Model, parsed: PlanOptions) -> PlanOptions:
    """Adds a sequence length to options that have none: the default, or less if the model's own
    context is shorter. The job's facts then contain it."""
    context = getattr(model.build(), "max_position_embeddings", None) or parsed.seq.most
    generated = 0 if parsed.workload == "train" else parsed.multiple + parsed.output.most
    room = (context - generated) // parsed.multiple * parsed.multiple
    why = "the default"
    if 0 < room < parsed.seq.most:
        parsed = dataclasses.replace(parsed, seq=lengths.parse(str(room)))
        less = f" less what it generates ({generated:,})" if generated else ""
        why = f"{model.name}'s context of {context:,}{less}"
    facts = getattr(job, "facts", None)
    if facts is not None:
        facts["assumed_seq"] = f"sequences of {parsed.seq.most:,} tokens ({why}; --seq says else)"
    return parsed


def find(name: str) -> Callable[[Any], Step]:
    """The ``make_step(job)`` of a model. The job's options say how it is trained or served.

    ``name`` is one of ``describe()``, or the path of a HuggingFace config.json. Raises
    UnknownOption for any other; ``make_step`` itself raises InvalidOption and PackageMissing.
    """
    if not is_plan(name):
        configs.load(name, options.parse({}))

    def make_step(job: Any) -> Step:
        parsed = options.parse(job.options, job.world)
        model = configs.load(name, parsed)
        if "seq" not in job.options:
            parsed = _default_length(job, model, parsed)
        if parsed.workload == "serving":
            from glake.trace.plans import serving

            return serving.make_step(job, model, parsed)
        if parsed.workload == "rlhf":
            from glake.trace.plans import rlhf

            return rlhf.make_step(job, model, parsed)
        from glake.trace.plans import train

        return train.make_step(job, model, parsed)

    return make_step
