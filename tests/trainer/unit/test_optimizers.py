"""Optimizers are checked by the papers' formulas in NumPy, and on pieces of parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from glake.errors import InvalidArgument, InvalidOption
from glake.trainer.optimizers import AGD, WSAM, AdamW, Optimizer, Schedule
from glake.trainer.optimizers.base import local_norm

RECIPES: dict[str, Optimizer.Config] = {
    "adamw": AdamW.Config(lr=0.03),
    "agd": AGD.Config(lr=0.03, delta=1e-2),  # turns the switch on for some elements
    "wsam": WSAM.Config(base=AdamW.Config(lr=0.03), rho=0.1),
    "wsam on agd": WSAM.Config(base=AGD.Config(lr=0.03, delta=1e-2), rho=0.1),
}
SHAPES = {"a.weight": (7, 5), "a.bias": (5,), "b.weight": (3, 4, 2)}


def start() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


def slope(name: str, value: torch.Tensor, step: int) -> torch.Tensor:
    """The gradient of a bowl with a wave. Each element and step has another one."""
    scale = torch.linspace(0.1, 2.0, value.numel()).view(value.shape) + len(name)
    return scale * value + torch.sin(3 * value + step)


def pieces_of(whole: dict[str, torch.Tensor], cuts: list[int]) -> list[tuple[str, nn.Parameter]]:
    """All values end to end, cut anywhere, as shards are. A piece never crosses two names."""
    found, at = [], 0
    for name, value in whole.items():
        edges = [0, *(cut - at for cut in cuts if 0 < cut - at < value.numel()), value.numel()]
        parts = zip(edges, edges[1:], strict=False)
        found += [(name, nn.Parameter(value.flatten()[low:high].clone())) for low, high in parts]
        at += value.numel()
    return found


def run(
    config: Optimizer.Config, named: list[tuple[str, nn.Parameter]], steps: int, first: int = 0
) -> torch.optim.Optimizer:
    """Steps with the gradients of the whole parameters that the pieces make up."""
    optimizer = config.build(named)
    for step in range(first, first + steps):
        take_step(optimizer, named, step)
    return optimizer


def take_step(
    optimizer: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]], step: int
) -> None:
    def gradients() -> None:
        for name, shape in SHAPES.items():
            parts = [own for of, own in named if of == name]
            whole = torch.cat([part.detach().flatten() for part in parts]).view(shape)
            slopes = slope(name, whole, step).flatten().split([part.numel() for part in parts])
            for part, its in zip(parts, slopes, strict=True):
                part.grad = its.view(part.shape).clone()

    gradients()
    takes_closure = getattr(optimizer, "takes_closure", False)
    optimizer.step(gradients) if takes_closure else optimizer.step()


def values(named: list[tuple[str, nn.Parameter]]) -> torch.Tensor:
    return torch.cat([own.detach().flatten() for _, own in named])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("cuts", [[1], [20, 36, 41], [35, 40], list(range(64))])
def test_steps_on_pieces_are_those_of_the_whole(recipe: str, cuts: list[int]) -> None:
    whole = [(name, nn.Parameter(value)) for name, value in start().items()]
    pieces = pieces_of(start(), cuts)
    run(RECIPES[recipe], whole, 6)
    run(RECIPES[recipe], pieces, 6)
    torch.testing.assert_close(values(pieces), values(whole), rtol=1e-5, atol=1e-6)


def adamw_formula(config: Any) -> Callable[..., np.ndarray]:
    """The formula of decoupled Adam (arXiv 1711.05101), for one parameter."""
    mean: Any = 0.0
    square: Any = 0.0

    def step(value: np.ndarray, gradient: np.ndarray, at: int, decay: float) -> np.ndarray:
        nonlocal mean, square
        one, two = config.betas
        mean = one * mean + (1 - one) * gradient
        square = two * square + (1 - two) * gradient**2
        root = np.sqrt(square / (1 - two**at)) + config.epsilon
        return value - config.lr * (decay * value + mean / (1 - one**at) / root)

    return step


def agd_formula(config: Any) -> Callable[..., np.ndarray]:
    """Algorithm 1 of arXiv 2312.01658, with AdamW's decay."""
    means: list[Any] = [0.0]
    square: Any = 0.0

    def step(value: np.ndarray, gradient: np.ndarray, at: int, decay: float) -> np.ndarray:
        nonlocal square
        one, two = config.betas
        means.append(one * means[-1] + (1 - one) * gradient)
        change = means[-1] / (1 - one**at)
        if at > 1:
            change = change - means[-2] / (1 - one ** (at - 1))
        square = two * square + (1 - two) * change**2
        divisor = np.maximum(np.sqrt(square), config.delta * np.sqrt(1 - two**at))
        rate = config.lr * np.sqrt(1 - two**at) / (1 - one**at)
        return value * (1 - config.lr * decay) - rate * means[-1] / divisor

    return step


FORMULAS = {AdamW: adamw_formula, AGD: agd_formula}


@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_are_the_papers(recipe: str) -> None:
    config: Any = RECIPES[recipe]
    named = [(name, nn.Parameter(value)) for name, value in start().items()]
    run(config, named, 8)
    base = config.base if isinstance(config, WSAM.Config) else config
    steps = {name: FORMULAS[base.part](base) for name in SHAPES}
    wanted = {name: value.double() for name, value in start().items()}
    for at in range(8):
        first = {name: slope(name, value, at) for name, value in wanted.items()}
        if isinstance(config, WSAM.Config):
            norm = torch.cat([each.flatten() for each in first.values()]).norm()
            climbed = {name: wanted[name] + config.rho * first[name] / norm for name in SHAPES}
            second = {name: slope(name, value, at) for name, value in climbed.items()}
        for name, value in wanted.items():
            decay = 0.0 if "bias" in name else base.weight_decay
            made = steps[name](value.numpy(), first[name].numpy(), at + 1, decay)
            if isinstance(config, WSAM.Config):
                sharpness = (second[name] - first[name]).numpy()
                made = made - base.lr * config.gamma / (1 - config.gamma) * sharpness
            wanted[name] = torch.from_numpy(made)
    for name, own in named:
        torch.testing.assert_close(own.detach().double(), wanted[name], rtol=1e-4, atol=1e-5)


def test_agd_switches_to_momentum_where_gradients_hardly_change() -> None:
    """Below the threshold the divisor is the same for all elements, so steps follow the mean."""
    own = nn.Parameter(torch.zeros(4))
    optimizer = AGD.Config(lr=0.1, delta=1e3, weight_decay=0).build([("w", own)])
    own.grad = torch.tensor([1.0, 2.0, -4.0, 0.0])
    optimizer.step()
    torch.testing.assert_close(own.detach(), -0.1 * own.grad / 1e3)


def test_agd_counts_steps_on_the_cpu_whatever_the_default_device() -> None:
    own = nn.Parameter(torch.ones(2))
    optimizer = AGD.Config().build([("w", own)])
    own.grad = torch.ones(2)
    with torch.device("meta"):  # a count on a GPU would make each step wait for it
        optimizer.step()
    assert optimizer.state[own]["step"].device.type == "cpu"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_goes_on_from_its_state(recipe: str) -> None:
    config = RECIPES[recipe]
    straight = [(name, nn.Parameter(value)) for name, value in start().items()]
    run(config, straight, 6)
    stopped = [(name, nn.Parameter(value)) for name, value in start().items()]
    state = copy.deepcopy(run(config, stopped, 3).state_dict())
    resumed = [(name, nn.Parameter(own.detach().clone())) for name, own in stopped]
    optimizer = config.build(resumed)
    optimizer.load_state_dict(state)
    for step in range(3, 6):
        take_step(optimizer, resumed, step)
    assert torch.equal(values(resumed), values(straight))


def test_wsam_obeys_a_schedule_after_its_state_came_back() -> None:
    named = [("w", nn.Parameter(torch.ones(2)))]
    optimizer = RECIPES["wsam"].build(named)
    optimizer.load_state_dict(optimizer.state_dict())
    Schedule.Config(warmup=10).build(steps=20).apply(optimizer, 0)
    base: Any = optimizer
    assert base.base.param_groups[0]["lr"] == pytest.approx(0.003)


def test_wsam_asks_for_the_norm_of_all_ranks() -> None:
    asked = []

    def norm(tensors: list[torch.Tensor]) -> torch.Tensor:
        asked.append(len(tensors))
        return local_norm(tensors) * 2  # as if another rank held as much again

    own = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = WSAM.Config(rho=1.0).build([("w", own)], norm)
    own.grad = torch.tensor([3.0, 4.0])
    seen = []
    optimizer.step(lambda: seen.append(own.detach().clone()))
    assert asked == [1]
    torch.testing.assert_close(seen[0], torch.tensor([3.0, 4.0]) * 1.1)


def test_frozen_parameters_and_those_without_gradients_stay() -> None:
    for config in RECIPES.values():
        frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        idle, busy = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        optimizer = config.build([("f", frozen), ("i", idle), ("b", busy)])
        busy.grad = torch.ones(3)
        optimizer.step(lambda: None)
        assert torch.equal(frozen, torch.ones(3)) and torch.equal(idle, torch.ones(3))
        assert not torch.equal(busy, torch.ones(3))


def test_adamw_has_torchs_fused_kernel() -> None:
    made = [(name, nn.Parameter(value)) for name, value in start().items()]
    auto = [(name, nn.Parameter(value)) for name, value in start().items()]
    run(AdamW.Config(fused=True), made, 4)
    run(AdamW.Config(), auto, 4)
    torch.testing.assert_close(values(made), values(auto), rtol=1e-5, atol=1e-6)


def test_bad_options_are_refused() -> None:
    own = [("w", nn.Parameter(torch.ones(2)))]
    with pytest.raises(InvalidOption, match="all are frozen"):
        AdamW.Config().build([("w", own[0][1].detach())])
    with pytest.raises(InvalidArgument, match="needs a closure"):
        WSAM.Config().build(own).step()


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.7, 0.4, 0.1]),
        ("cosine", [0.5, 1, 1, 0.775, 0.325, 0.1]),
    ],
)
def test_rates_rise_and_fall(shape: str, wanted: list[float]) -> None:
    schedule = Schedule.Config(warmup=2, shape=shape).build(steps=6)
    assert [schedule(step) for step in range(6)] == pytest.approx(wanted)
    assert schedule(100) == pytest.approx(wanted[-1])


def test_a_rate_depends_on_the_step_alone() -> None:
    schedule = Schedule.Config(warmup=5).build(steps=50)
    optimizer = AdamW.Config(lr=0.2).build([("w", nn.Parameter(torch.ones(1)))])
    rates = [schedule.apply(optimizer, step) for step in (4, 30, 0, 4)]
    assert rates[0] == rates[3] == 0.2 and rates[2] == pytest.approx(0.04)


def test_schedules_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidOption, match="warmup is 9: take 0 to 5"):
        Schedule.Config(warmup=9).build(steps=5)
