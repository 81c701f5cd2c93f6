"""On one rank without a process group glake's FSDP equals the bare model, and refuses misuse."""

import copy

import nets
import pytest
import torch
from torch import nn

from glake.errors import InvalidArgument, InvalidOption, UnknownOption
from glake.trainer.fsdp import Sharding, offload
from glake.trainer.models import sizes

TOKENS = torch.arange(24).view(3, 8) % nets.VOCABULARY


def optimizer_of(parameters):
    return torch.optim.AdamW([each for each in parameters if each.requires_grad], lr=1e-2)


def plain_losses(net, steps=3):
    optimizer = optimizer_of(net.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nets.loss_of(net(TOKENS), TOKENS)
        loss.backward()
        for each in net.parameters():
            if each.grad is not None:
                each.grad /= 24
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def sharded_losses(sharded, optimizer, steps=3):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nets.loss_of(sharded(TOKENS), TOKENS)
        loss.backward()
        sharded.clip_gradients(None, scale=1 / 24)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def sharded_of(net, **options):
    sharded = Sharding.Config(**options).build(net, device="cpu")
    return sharded, optimizer_of(each for _, each in sharded.named_parameters())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reshard_after_forward": False},
        {"recompute": True},
        {"offload": "parameters"},
        {"offload": "optimizer"},
        {"activation_offload": True},
        {"activation_offload": True, "recompute": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("net", [{}, {"kind": nets.MoE}, {"kind": nets.LoRA}, {"tied": True}])
def test_equals_the_unsharded_model(options, net, monkeypatch):
    monkeypatch.setattr(offload, "SMALLEST", 1)
    model = nets.Net(**net)
    expected = plain_losses(copy.deepcopy(model))
    sharded, optimizer = sharded_of(model, **options)
    sharded.attach(optimizer)
    assert sharded_losses(sharded, optimizer) == pytest.approx(expected, rel=1e-6)


def test_meta_device_gives_the_values_of_the_seed():
    with torch.device("meta"):
        model = nets.Net()
    torch.manual_seed(3)
    sharded, _ = sharded_of(model)
    torch.manual_seed(3)
    expected = nets.Net()
    # Values are drawn for the root first, then block by block.
    torch.manual_seed(3)
    for part in (expected.embedding, expected.norm, expected.head):
        part.reset_parameters()
    for block in expected.blocks:
        for part in block.children():
            part.reset_parameters()
    found = dict(sharded.full_parameters())
    assert set(found) == {name for name, _ in expected.named_parameters()}
    for name, parameter in expected.named_parameters():
        assert torch.equal(found[name], parameter), name


def test_meta_device_with_buffers_and_what_cannot_be_made():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("angles", torch.zeros(4))

        def reset_parameters(self):
            self.angles.fill_(2.0)

    with torch.device("meta"):
        model = nets.Net()
        model.table = Table()
    sharded_of(model)
    assert torch.equal(model.table.angles, torch.full((4,), 2.0))

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

    with torch.device("meta"):
        model = nets.Net()
        model.bare = Bare()
    with pytest.raises(InvalidArgument, match="bare: Bare .* no reset_parameters"):
        sharded_of(model)


def test_a_state_is_taken_over_and_goes_on_to_the_same_losses():
    sharded, optimizer = sharded_of(nets.Net())
    sharded_losses(sharded, optimizer)
    state = {key: value.clone() for key, value in sharded.state.tensors(optimizer).items()}
    expected = sharded_losses(sharded, optimizer)

    other, others = sharded_of(nets.Net())
    other.state.load(state, others)
    assert sharded_losses(other, others) == expected


def test_a_state_of_another_model_is_refused():
    sharded, optimizer = sharded_of(nets.Net())
    sharded_losses(sharded, optimizer, 1)
    state = sharded.state.tensors(optimizer)
    wider, _ = sharded_of(nets.Net(dim=16))
    with pytest.raises(InvalidArgument, match=r"elements in the checkpoint and .* in the model"):
        wider.state.load(state, None)
    deeper, _ = sharded_of(nets.Net(layers=4))
    with pytest.raises(InvalidArgument, match=r"blocks\.3\S* has no elements in the checkpoint"):
        deeper.state.load(state, None)
    shallow, _ = sharded_of(nets.Net(layers=2))
    with pytest.raises(InvalidArgument, match=r"blocks\.2\S* has \d+ .* and no in the model"):
        shallow.state.load(state, None)


def test_misuse():
    with pytest.raises(InvalidArgument, match="no `blocks`"):
        Sharding.Config().build(nn.Linear(3, 3), device="cpu")
    with pytest.raises(UnknownOption, match="did you mean 'recompute'"):
        Sharding.Config(recomput=True)
    with pytest.raises(InvalidOption, match="'theirs' is none of 'ours', 'torch'"):
        Sharding.Config(fsdp="theirs")
    with pytest.raises(InvalidArgument, match="needs a process group"):
        Sharding.Config(fsdp="torch").build(nets.Net(), device="cpu")


def test_accumulated_gradients_are_those_of_one_pass():
    whole, _ = sharded_of(copy.deepcopy(model := nets.Net()))
    nets.loss_of(whole(TOKENS), TOKENS).backward()
    parts, _ = sharded_of(model)
    with parts.accumulate():
        for row in range(2):
            nets.loss_of(parts(TOKENS[row : row + 1]), TOKENS[row : row + 1]).backward()
            assert all(each.grad is None for _, each in parts.named_parameters())
    nets.loss_of(parts(TOKENS[2:]), TOKENS[2:]).backward()
    expected = dict(whole.named_parameters())
    for name, piece in parts.named_parameters():
        torch.testing.assert_close(piece.grad, expected[name].grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_a_block_is_refused(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nets.Net):
        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.head(self.norm(x))

    sharded, _ = sharded_of(Checkpointed())
    with pytest.raises(
        InvalidArgument, match=r"blocks\.2 runs forward within .*sharding.recompute"
    ):
        nets.loss_of(sharded(TOKENS), TOKENS).backward()


def test_a_failed_backward_pass_is_forgotten():
    model = nets.Net()
    expected = plain_losses(copy.deepcopy(model))
    sharded, optimizer = sharded_of(model, offload="parameters")

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("made to fail")

    original = model.blocks[1].norm.forward
    model.blocks[1].norm.forward = lambda x: original(Fails.apply(x))
    with pytest.raises(RuntimeError, match="made to fail"):
        nets.loss_of(sharded(TOKENS), TOKENS).backward()
    model.blocks[1].norm.forward = original
    assert sharded_losses(sharded, optimizer) == pytest.approx(expected, rel=1e-6)


def test_gradients_before_a_failed_pass():
    """They survive a failed forward pass. A failed backward pass drops all gradients."""
    expected, _ = sharded_of(copy.deepcopy(model := nets.Net()))
    nets.loss_of(expected(TOKENS), TOKENS).backward()
    once = {name: piece.grad.clone() for name, piece in expected.named_parameters()}
    sharded, _ = sharded_of(model)
    original = model.blocks[0].norm.forward
    for failing in ("forward", "backward"):
        with sharded.accumulate():
            nets.loss_of(sharded(TOKENS), TOKENS).backward()

        def fails(x, failing=failing):
            if failing == "forward":
                raise RuntimeError("made to fail")
            x = original(x)
            x.register_hook(lambda gradient: 1 // 0)
            return x

        model.blocks[0].norm.forward = fails
        with pytest.raises((RuntimeError, ZeroDivisionError)):
            nets.loss_of(sharded(TOKENS), TOKENS).backward()
        model.blocks[0].norm.forward = original
        nets.loss_of(sharded(TOKENS), TOKENS).backward()
        times = 2 if failing == "forward" else 1
        for name, piece in sharded.named_parameters():
            torch.testing.assert_close(piece.grad, times * once[name], rtol=1e-5, atol=1e-6)
            piece.grad = None


def test_parameters_are_whole_within_passes_alone():
    """Between passes modules hold pieces, so that nobody reads memory that was given back."""
    sharded, _ = sharded_of(model := nets.Net(), compute_dtype="bfloat16")
    block = model.blocks[0]
    seen = []
    block.up.register_forward_hook(lambda module, *_: seen.append(module.weight.shape))
    loss = nets.loss_of(sharded(TOKENS), TOKENS)
    assert seen == [torch.Size([29, 13])]
    assert block.up.weight.shape == torch.Size([29 * 13])
    loss.backward()
    assert all(unit.flats[0].full.untyped_storage().nbytes() == 0 for unit in units_of(sharded))


def units_of(sharded):
    return sharded._schedule.units


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny", "moe-tiny"])
def test_a_share_is_no_more_than_its_part(name):
    """Sharded state of a rank is within 2 % of total / ranks, padding included."""
    from glake.trainer.fsdp import materialise
    from glake.trainer.fsdp.collectives import Collectives

    for count in (1, 2, 3, 4, 8, 64):
        with torch.device("meta"):
            model = sizes.model(name).build()
        total = sum(each.numel() for each in model.parameters())
        ranks = Collectives(None, torch.device("meta"))
        ranks.ranks = count
        flats = [
            flat
            for unit, found in materialise.slots_of(model).items()
            for flat in materialise.flats_of(unit, found, ranks, None, None)
        ]
        assert sum(flat.chunk for flat in flats) <= 1.02 * total / count
