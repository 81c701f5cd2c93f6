"""The models: sizes, parts against plain formulas, swaps across the whole zoo."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from glake.errors import InvalidArgument, UnknownOption
from glake.trainer.models import sizes
from glake.trainer.models.attention import Attention
from glake.trainer.models.decoder import IGNORED, Block, Decoder
from glake.trainer.models.feed_forward import MLP, MoE, SwiGLU
from glake.trainer.models.leaf import Leaf
from glake.trainer.models.lora import LoRA, with_lora
from glake.trainer.models.position import Rotary, Sequences

# Parameters of published checkpoints: those of GPT-2's and OPT's papers, and Meta's of Llama.
PUBLISHED = {
    "gpt-small": 124_439_808,
    "gpt-medium": 354_823_168,
    "gpt-large": 774_030_080,
    "gpt-xl": 1_557_611_200,
    "opt-125m": 125_239_296,
    "opt-1.3b": 1_315_758_080,
    "opt-13b": 12_853_473_280,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
}


def built(config: Decoder.Config, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    model: Decoder = config.build()
    return model


def on_meta(config: Decoder.Config) -> Decoder:
    with torch.device("meta"):
        model: Decoder = config.build()
    return model


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))


def small(**fields: Any) -> Decoder.Config:
    config = sizes.llama(2, 32, 4, 64, key_value_heads=2, vocabulary=256)
    for path, value in fields.items():
        config.set(path.replace("__", "."), value)
    return config


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_size_has_the_published_number_of_parameters(name: str) -> None:
    count = sum(own.numel() for own in on_meta(sizes.model(name)).parameters())
    assert count == PUBLISHED[name]


def test_an_unknown_size_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownOption, match="no model 'gpt-smal' .did you mean 'gpt-small'"):
        sizes.model("gpt-smal")


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny", "moe-tiny"])
def test_every_parameter_learns_and_no_token_sees_what_follows(name: str) -> None:
    model, rows = built(sizes.model(name)), tokens(2, 24)
    loss = model(rows[:, :-1], rows[:, 1:])
    loss.total.backward()
    assert all(own.grad is not None and own.grad.abs().sum() > 0 for own in model.parameters())
    assert (loss.total / loss.count).item() == pytest.approx(5.6, abs=0.3)  # log(256) = 5.55
    changed = rows.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 256
    before, after = model(rows), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(before[:, 12:], after[:, 12:])


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny"])
def test_packed_documents_are_as_if_alone(name: str) -> None:
    model = built(sizes.model(name))
    first, second = tokens(1, 10), tokens(1, 14, seed=2)
    packed = model(torch.cat([first, second], 1), segments=torch.tensor([[3] * 10 + [5] * 14]))
    torch.testing.assert_close(packed[:, :10], model(first), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(packed[:, 10:], model(second), rtol=1e-4, atol=1e-5)


def test_positions_begin_anew_in_each_segment() -> None:
    segments = torch.tensor([[0, 0, 0, 1, 1, 2], [7, 7, 7, 7, 7, 7]])
    made = Sequences.of(tokens(2, 6), segments)
    assert made.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]]


def test_loss_sums_over_targets_that_count() -> None:
    model, rows = built(small()), tokens(2, 9)
    targets = rows[:, 1:].clone()
    targets[0, 3:] = IGNORED
    loss = model(rows[:, :-1], targets)
    logits = model(rows[:, :-1])
    alone = F.cross_entropy(logits[0, :3], targets[0, :3], reduction="sum")
    other = F.cross_entropy(logits[1], targets[1], reduction="sum")
    assert loss.count == 11
    torch.testing.assert_close(loss.total, alone + other)


def test_loss_in_pieces_is_the_same() -> None:
    whole, pieces = built(small()), built(small(loss_rows=5))
    rows = tokens(2, 9)
    for model in (whole, pieces):
        model(rows[:, :-1], rows[:, 1:]).total.backward()
    for one, other in zip(whole.parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny"])
def test_a_model_from_the_meta_device_starts_the_same(name: str) -> None:
    config = with_lora(sizes.model(name))
    placed = built(config)
    model = on_meta(config)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, Leaf):
            module.reset_parameters()
    for own, other in zip(placed.parameters(), model.parameters(), strict=True):
        assert torch.equal(own, other)
    owners = [type(it) for it in model.modules() if list(it.parameters(recurse=False))]
    assert all(issubclass(owner, Leaf) for owner in owners)


def test_grouped_heads_are_heads_with_keys_repeated() -> None:
    torch.manual_seed(0)
    grouped = Attention.Config(heads=4, key_value_heads=2).build(dim=32)
    whole = Attention.Config(heads=4).build(dim=32)
    for name in ("query", "output"):
        getattr(whole, name).load_state_dict(getattr(grouped, name).state_dict())
    for name in ("key", "value"):
        weight = getattr(grouped, name).weight.view(2, 8, 32)
        getattr(whole, name).weight.data = weight.repeat_interleave(2, 0).view(32, 32)
    x = torch.randn(2, 6, 32)
    sequences = Sequences.of(tokens(2, 6), None)
    torch.testing.assert_close(grouped(x, sequences), whole(x, sequences))


def test_rotary_scores_depend_on_distance_alone() -> None:
    rotary = Rotary.Config(factor=4.0).build()
    query, key = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(at: int, to: int) -> float:
        turned = [
            rotary(part, Sequences(torch.tensor([place]), None))
            for part, place in ((query, at), (key, to))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 5) == pytest.approx(score(104, 100), rel=1e-4)
    assert score(9, 5) != pytest.approx(score(9, 6), rel=1e-3)


def plain_mixture(part: MoE, x: torch.Tensor) -> torch.Tensor:
    """The mixture computed plainly: each token by itself, in a loop."""
    out = torch.zeros_like(x)
    for at, token in enumerate(x):
        likes = part.router(token).softmax(-1)
        weights, chosen = likes.topk(part.config.top_k)
        for weight, expert in zip(weights / weights.sum(), chosen.tolist(), strict=True):
            out[at] += weight * part.experts[expert](token, None)
    return out


def test_experts_get_the_tokens_that_chose_them() -> None:
    torch.manual_seed(0)
    config = MoE.Config(expert=SwiGLU.Config(hidden=24), experts=5, top_k=2)
    part = config.build(dim=16)
    part.router.weight.data.normal_()
    x = torch.randn(3, 7, 16)
    sequences = Sequences.of(tokens(3, 7), None)
    torch.testing.assert_close(
        part(x, sequences).flatten(0, 1), plain_mixture(part, x.flatten(0, 1))
    )


def test_a_full_expert_drops_last_choices() -> None:
    part = MoE.Config(expert=MLP.Config(hidden=8), experts=2, top_k=1, capacity=0.5).build(dim=4)
    part.router.weight.data = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    x = torch.randn(8, 4)
    x[:, 0] = x[:, 0].abs()  # all choose the first expert, which has two rows
    sequences = Sequences.of(tokens(1, 8), None)
    out = part(x, sequences)
    assert out[:2].abs().sum() > 0 and out[2:].abs().sum() == 0
    torch.testing.assert_close(out[:2], plain_mixture(part, x[:2]))


def test_the_balance_term_is_one_where_experts_are_used_alike() -> None:
    part = MoE.Config(expert=MLP.Config(hidden=8), experts=4, top_k=4, balance=1.0).build(dim=4)
    sequences = Sequences.of(tokens(1, 8), None)
    part(torch.randn(8, 4), sequences)
    assert float(sequences.take_terms()["balance"]) == pytest.approx(1.0)
    part(torch.randn(8, 4), sequences)  # recomputation calls it again: no new term
    assert sequences.take_terms() == {}


def test_the_balance_term_is_in_the_loss_and_named() -> None:
    model, rows = built(sizes.model("moe-tiny")), tokens(2, 9)
    loss = model(rows[:, :-1], rows[:, 1:])
    logits = model(rows[:, :-1])
    plain = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(loss.total, plain + loss.terms["balance"] * loss.count)
    assert float(loss.terms["balance"]) == pytest.approx(4 * 0.01, rel=0.2)  # four layers


def test_lora_starts_as_the_base_and_trains_alone() -> None:
    plain = built(small())
    config = with_lora(small(), rank=4, alpha=8)
    model = built(config)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in plain.named_parameters():
            place, _, last = name.rpartition(".")
            own[name if name in own else f"{place}.base.{last}"].copy_(value)
    rows = tokens(2, 9)
    torch.testing.assert_close(model(rows), plain(rows))
    trained = {name for name, it in own.items() if it.requires_grad}
    assert trained and all(".down." in name or ".up." in name for name in trained)
    assert len(trained) == 2 * 7 * 2  # two matrices, seven projections, two blocks
    model(rows[:, :-1], rows[:, 1:]).total.backward()
    assert {name for name, it in own.items() if it.grad is not None} == trained


def test_lora_trains_in_fp32_beside_a_base_in_bf16() -> None:
    model, rows = built(with_lora(small(), dtype="bfloat16")), tokens(2, 9)
    dtypes = {it.dtype for it in model.parameters() if not it.requires_grad}
    assert dtypes == {torch.bfloat16}
    model(rows[:, :-1], rows[:, 1:]).total.backward()
    trained = [it for it in model.parameters() if it.requires_grad]
    assert all(it.dtype == it.grad.dtype == torch.float32 for it in trained)


def test_lora_goes_into_experts_once_and_not_into_the_router() -> None:
    model = on_meta(with_lora(sizes.model("moe-tiny")))
    loras = [name for name, module in model.named_modules() if isinstance(module, LoRA)]
    assert len(loras) == 4 * (4 + 4 * 3)
    assert not any("router" in name or ".base." in name for name in loras)


def test_lora_given_twice_is_refused_and_changes_nothing() -> None:
    config = with_lora(small(), rank=4)
    before = copy.deepcopy(config)
    with pytest.raises(InvalidArgument, match="7 projections have LoRA of rank 4 already; call it"):
        with_lora(config)
    assert config == before


def test_lora_goes_once_into_a_part_within_another() -> None:
    assert with_lora(small(), parts=(Block.Config, Attention.Config)) == with_lora(small())


SWAPS = {
    "rope": (sizes.with_rope, Rotary, "rotary"),
    "experts": (sizes.with_experts, MoE, "feed_forward"),
}


@pytest.mark.parametrize("name", sizes.ZOO)
@pytest.mark.parametrize("swap", SWAPS)
def test_a_swap_reaches_every_model_of_the_zoo(name: str, swap: str) -> None:
    change, part, _ = SWAPS[swap]
    before, config = sizes.model(name), sizes.model(name)
    before.layers = config.layers = 1
    config = change(config)
    model = on_meta(config)
    assert isinstance(model.blocks[0].attention.rotary, Rotary) or swap != "rope"
    assert isinstance(model.blocks[0].feed_forward, MoE) or swap != "experts"
    if swap == "rope":
        assert model.position is None
    # Only the swap changed. Parts that it does not name are as they were.
    touched = ("position", "block.attention.rotary", "block.feed_forward")
    assert all(path.startswith(touched) for path in before.diff(config))


@pytest.mark.parametrize("swap", SWAPS)
def test_a_swap_is_ten_lines_in_one_place(swap: str) -> None:
    assert len(inspect.getsource(SWAPS[swap][0]).splitlines()) <= 10


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"block__attention__heads": 5}, "5 heads do not make groups of 2"),
        ({"block__attention__heads": 6}, "width of 32 is no multiple of 6 heads"),
        ({"block__attention__rotary__slow_turns": 9}, "slow_turns is 9.0: take less than 4.0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        built(small(**fields))


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    model = built(sizes.model("gpt-tiny"))
    with pytest.raises(InvalidArgument, match="a sequence of 257 tokens; this model has 256"):
        model(tokens(1, 257))


def test_models_keep_configs_of_their_own() -> None:
    config = small()
    model = built(config)
    assert model.config == config and model.config is not config
    assert copy.deepcopy(config).build().config == config
