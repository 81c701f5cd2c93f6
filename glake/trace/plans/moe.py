"""Mixture of experts on fake tensors. Token counts are random, because no router has values there.

transformers' own loop over experts asks which tokens chose each expert, and that depends on data.
Here each expert gets a random number of tokens, by the seed, and runs on that many. The allocations
are those of transformers' loop for such a batch. ``routing=grouped`` is transformers' own grouped
kernel, whose buffers do not depend on the choice.
"""

from __future__ import annotations

import random
from typing import Any

from glake.errors import InvalidOption
from glake.trace.plans.configs import require
from glake.trace.plans.options import PlanOptions

_NAME = "glake_drawn"
# The shape of the gamma variates of which each expert's share is made. The larger it is, the more
# equal the shares are.
_EVENNESS = {"balanced": 400.0, "skewed": 0.7}


def is_moe(config: Any) -> bool:
    """Whether a config is that of a mixture of experts."""
    return any(getattr(config, name, None) for name in ("num_local_experts", "num_experts"))


def check(options: PlanOptions, types: tuple[Any, Any]) -> None:
    """Raises InvalidOption if the grouped kernel would get weights that are not bfloat16."""
    import torch

    held, work = types
    given = work if options.strategy == "fsdp2" else held
    if options.routing == "grouped" and given is not torch.bfloat16:
        raise InvalidOption(
            f"routing=grouped multiplies bfloat16 only, and precision={options.precision} with "
            f"strategy={options.strategy} gives it {str(given).removeprefix('torch.')}: "
            "precision=bf16, strategy=fsdp2, or routing=balanced"
        )


def token_counts(
    chance: random.Random, tokens: int, experts: int, per_token: int, routing: str
) -> list[int]:
    """How many of ``tokens`` each expert gets. They add up to ``tokens * per_token``.

    A token goes to the same expert at most once, so no count is above ``tokens``.
    """
    shares = [chance.gammavariate(_EVENNESS[routing], 1.0) for _ in range(experts)]
    counts = [min(tokens, int(tokens * per_token * each / sum(shares))) for each in shares]
    left = tokens * per_token - sum(counts)
    for expert in sorted(range(experts), key=lambda each: -shares[each]):
        more = min(left, tokens - counts[expert])
        counts[expert] += more
        left -= more
    return counts


class Drawn:
    """Draws each layer's counts. If the layer is recomputed in backward, it gets the same
    counts."""

    def __init__(self, routing: str, seed: int) -> None:
        self.routing = routing
        self.seed = seed
        self.batch = 0
        """The number of the present batch. The plan's step function sets it."""
        self._layers: dict[int, int] = {}

    def forward(self, module: Any, hidden: Any, chosen: Any, weights: Any) -> Any:
        """An experts layer: hidden (tokens, width), chosen and weights (tokens, per token)."""
        import torch
        from torch.nn import functional

        out = torch.zeros_like(hidden)
        with torch.no_grad():
            mask = functional.one_hot(chosen, num_classes=module.num_experts + 1).permute(2, 1, 0)
            mask.sum(dim=(-1, -2))
        layer = self._layers.setdefault(id(module), len(self._layers))
        chance = random.Random(f"{self.seed}/{self.batch}/{layer}")
        counts = token_counts(
            chance, hidden.shape[0], module.num_experts, chosen.shape[1], self.routing
        )
        for expert, count in enumerate(counts):
            if count == 0:
                continue
            place = torch.zeros(count, dtype=torch.int64, device=hidden.device)
            token = torch.zeros(count, dtype=torch.int64, device=hidden.device)
            gated = functional.linear(hidden[token], module.gate_up_proj[expert])
            gate, up = gated.chunk(2, dim=-1)
            made = functional.linear(module.act_fn(gate) * up, module.down_proj[expert])
            made = made * weights[token, place, None]
            out.index_add_(0, token, made.to(out.dtype))
        return out


_drawn = Drawn("balanced", 0)


def _forward(module: Any, hidden: Any, chosen: Any, weights: Any) -> Any:
    return _drawn.forward(module, hidden, chosen, weights)


def implementation(options: PlanOptions) -> str:
    """transformers' name for the experts code of ``routing``. glake's own is registered first."""
    if options.routing == "grouped":
        return "grouped_mm"
    require("transformers")
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError as old:
        raise InvalidOption(
            f"routing={options.routing} needs transformers 5 or newer: pip install -U transformers"
        ) from old
    ALL_EXPERTS_FUNCTIONS.register(_NAME, _forward)
    return _NAME


def start(options: PlanOptions, seed: int) -> Drawn:
    """The counts of one plan, from its seed."""
    global _drawn
    _drawn = Drawn("balanced" if options.routing == "grouped" else options.routing, seed)
    return _drawn
