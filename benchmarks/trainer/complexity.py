"""Counts lines that change when RoPE, or experts, go into every one of more and more experiments.

complexity.py takes growing numbers of the zoo's models, with variants of each. It puts the change
into all of them by one call each, builds every result on the meta device and runs it. It counts:

- lines changed: those of the one function that makes the change. No other file is edited, because
  only the package's own parts are used.
- beside it, the lines that the same change needs if every parent repeats the fields of its
  children, as flat configs do: a line for each new field in each class from the part up to the
  experiment, and one in each experiment. They are counted from the same trees. (AXLearn, arXiv
  2507.05411, section 4.)
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from glake.trainer.configurable import Configurable
from glake.trainer.models import sizes
from glake.trainer.models.attention import Attention
from glake.trainer.models.decoder import Decoder
from glake.trainer.models.feed_forward import MLP, FeedForward, MoE
from glake.trainer.models.lora import with_lora
from glake.trainer.models.position import Rotary

# change: (the function that makes it, the parts that it goes into, the config that it adds)
CHANGES: dict[str, tuple[Callable[..., Any], type[Configurable.Config], Configurable.Config]] = {
    "RoPE": (sizes.with_rope, Attention.Config, Rotary.Config()),
    "experts": (sizes.with_experts, FeedForward.Config, MoE.Config(expert=MLP.Config(hidden=1))),
}


class Experiment(Configurable):
    """An experiment has a model, so its configs have one level more than the model's."""

    @dataclasses.dataclass(kw_only=True)
    class Config(Configurable.Config):
        model: Decoder.Config
        name: str


def experiments(models: int, variants: int) -> list[Experiment.Config]:
    """`variants` (at most 4) of each of the zoo's first `models`, one layer deep."""
    found = []
    for name in list(sizes.ZOO)[:models]:
        for variant in range(variants):
            model = sizes.model(name)
            model.layers = 1
            if variant % 2:
                model = with_lora(model)
            if variant >= 2:
                model.loss_rows = 16
            found.append(Experiment.Config(model=model, name=f"{name}-{variant}"))
    return found


def parents(config: Any, kind: type[Configurable.Config], above: tuple[str, ...] = ()) -> Iterator:
    """For each part of a kind, the classes from it up to the root."""
    chain = (*above, type(config).__qualname__)
    if isinstance(config, kind):
        yield chain
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Configurable.Config):
            yield from parents(value, kind, chain)


def flat_lines(
    all_of_them: list[Experiment.Config], kind: type[Configurable.Config], added: Any
) -> int:
    """Lines that change if each class between the part and the root repeats the new fields."""
    fields = len([each for each in dataclasses.fields(added) if each.name != "expert"])
    classes = {name for config in all_of_them for chain in parents(config, kind) for name in chain}
    return fields * len(classes) + len(all_of_them)


def check(config: Experiment.Config, part: type) -> None:
    """Checks that the model builds and runs, and that every block has the part."""
    with torch.device("meta"):
        model = config.model.build()
        model(torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int64))
    for block in model.blocks:
        assert isinstance(block.attention.rotary, part) or isinstance(block.feed_forward, part)


def main() -> None:
    print("| change | models | variants of each | lines changed | flat configs |")
    print("|---|---|---|---|---|")
    for name, (change, kind, added) in CHANGES.items():
        lines = len(inspect.getsource(change).splitlines())
        for models, variants in ((1, 1), (4, 1), (len(sizes.ZOO), 1), (len(sizes.ZOO), 4)):
            taken = experiments(models, variants)
            flat = flat_lines(taken, kind, added)
            for config in taken:
                check(change(config), type(added).part)
            print(f"| {name} | {models} | {variants} | {lines} | {flat} |")


if __name__ == "__main__":
    main()
