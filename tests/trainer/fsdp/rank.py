"""One rank: runs cases under glake's FSDP and under PyTorch's, and writes the results as JSON.

Usage: rank.py OUTPUT CASE..., in an environment like torchrun's.
"""

import json
import os
import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cases import CASES
from nets import VOCABULARY, Net, loss_of

from glake.trainer.fsdp import Sharding, offload
from glake.trainer.models import sizes

STEPS = 10


def batches(case, number):
    """This rank's micro-batches of a step."""
    generator = torch.Generator().manual_seed(1000 * (number % 2) + dist.get_rank())
    for _ in range(case.get("micro", 1)):
        drawn = torch.randint(VOCABULARY, (2, 9), generator=generator)
        yield drawn[:, :-1], drawn[:, 1:]


def whole_gradients(sharded):
    """name -> the whole gradient, from every rank's parts."""
    mine = {}
    for name, parameter in sharded.named_parameters():
        grad = parameter.grad
        if grad is not None:
            local = grad.to_local() if hasattr(grad, "to_local") else grad
            mine[name] = local.detach().float().reshape(-1).clone()
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    names = {name for parts in every for name in parts}
    return {name: torch.cat([parts[name] for parts in every if name in parts]) for name in names}


def net_of(case):
    if "zoo" in case:
        config = sizes.model(case["zoo"])
        config.set("layers", 2)
        with torch.device("meta" if case.get("meta") else "cpu"):
            return config.build()
    return Net(**case.get("net", {}))


def train(case, side):
    """Losses, the gradients of the first step, and the last parameters."""
    torch.manual_seed(7)
    config = Sharding.Config(fsdp=side, **case.get("sharding", {}))
    if side == "torch":
        config.activation_offload = False  # PyTorch has none and refuses it
    net = net_of(case)
    sharded = config.build(net, device="cpu")
    optimizer = torch.optim.AdamW(
        [each for _, each in sharded.named_parameters() if each.requires_grad],
        lr=case.get("lr", 1e-2),
    )
    sharded.attach(optimizer)
    losses, first = [], None
    for number in range(STEPS):
        case.get("before", lambda *_: None)(sharded, net, number, optimizer)
        optimizer.zero_grad()
        total, micro = 0.0, list(batches(case, number))
        for at, (tokens, targets) in enumerate(micro):
            if at + 1 < len(micro):
                with sharded.accumulate():
                    total += backward(case, sharded, net, tokens, targets)
            else:
                total += backward(case, sharded, net, tokens, targets)
        count = 16 * len(micro) * dist.get_world_size()
        if number == 0:
            first = whole_gradients(sharded)
        sharded.clip_gradients(1.0, scale=1.0 / count)
        optimizer.step()
        total = torch.tensor(total)
        dist.all_reduce(total)
        losses.append(float(total) / count)
    return losses, first, dict(sharded.full_parameters())


def backward(case, sharded, net, tokens, targets):
    if case.get("partial"):  # through a block alone, not the root
        value = net.blocks[0](torch.nn.functional.one_hot(tokens % 13, 13).float()).square().sum()
    elif "zoo" in case:
        value = sharded(tokens, targets).total
    else:
        value = loss_of(sharded(tokens), targets)
    value.backward()
    return float(value.detach())


def compare(case):
    """Trains on both sides, and compares the results. Only rank 0 has whole tensors."""
    ours, gradients, parameters = train(case, "ours")
    theirs, their_gradients, their_parameters = train(case, "torch")
    # A bias of keys changes no attention, so its gradient is noise. Adam makes full steps of it.
    most = max((float(each.abs().max()) for each in their_gradients.values()), default=0.0)
    noise = {name for name, each in their_gradients.items() if each.abs().max() < 1e-6 * most}
    assert len(noise) <= 2 and all("key" in name for name in noise), noise
    return {
        "ours": ours,
        "theirs": theirs,
        "gradients": differences(gradients, their_gradients),
        "parameters": differences(parameters, their_parameters, noise),
    }


def differences(mine, theirs, without=()):
    """name -> the largest difference, relative to the largest value."""
    missing = set(mine) ^ set(theirs)
    if missing:
        return {name: float("inf") for name in missing}
    return {
        name: float((mine[name].view(-1) - theirs[name].view(-1)).abs().max())
        / max(1e-12, float(theirs[name].abs().max()))
        for name in theirs
        if name not in without
    }


def step(sharded, optimizer, number):
    """One step on this rank's rows of a batch that is the same for every number of ranks."""
    drawn = torch.randint(VOCABULARY, (12, 9), generator=torch.Generator().manual_seed(number))
    drawn = drawn[dist.get_rank() :: dist.get_world_size()]
    optimizer.zero_grad()
    value = loss_of(sharded(drawn[:, :-1]), drawn[:, 1:])
    value.backward()
    sharded.clip_gradients(1.0, scale=1 / 96)
    optimizer.step()
    total = value.detach().clone()
    dist.all_reduce(total)
    return float(total) / 96


def fresh(case, seed):
    torch.manual_seed(seed)
    config = Sharding.Config(**case.get("sharding", {}))
    sharded = config.build(Net(**case.get("net", {})), device="cpu")
    trained = [each for _, each in sharded.named_parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    sharded.attach(optimizer)
    return sharded, optimizer


def save(case):
    """Takes three steps, saves a checkpoint, and takes three more."""
    sharded, optimizer = fresh(case, 7)
    before = [step(sharded, optimizer, number) for number in range(3)]
    dcp.save(sharded.state.tensors(optimizer), checkpoint_id=case_directory(case))
    after = [step(sharded, optimizer, number) for number in range(3, 6)]
    return {"before": before, "after": after}


def load(case):
    """Takes the last three steps, from the checkpoint."""
    sharded, optimizer = fresh(case, 8)
    saved = dcp.FileSystemReader(case_directory(case)).read_metadata().state_dict_metadata
    state = sharded.state.template(saved)
    dcp.load(state, checkpoint_id=case_directory(case))
    sharded.state.load(state, optimizer)
    return {"after": [step(sharded, optimizer, number) for number in range(3, 6)]}


def put(case):
    """For each side, whether whole values that were put into shares come back."""
    same = {}
    for side in ("ours", "torch"):
        config = Sharding.Config(fsdp=side, **case.get("sharding", {}))
        sharded = config.build(Net(**case.get("net", {})), device="cpu")
        shapes = {name: each.shape for name, each in Net(**case.get("net", {})).named_parameters()}
        values = {
            name: torch.arange(shape.numel()).float().view(shape) + 1000 * at
            for at, (name, shape) in enumerate(shapes.items())
        }
        for name, value in values.items():
            sharded.put(name, value)
        found = dict(sharded.full_parameters())
        same[side] = all(torch.equal(found[name].view(-1), values[name].view(-1)) for name in found)
        assert dist.get_rank() or found.keys() == values.keys()
    return same


def case_directory(case):
    return f"{os.environ['FSDP_CHECKPOINTS']}/{case['saved']}"


def main():
    output, names = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    offload.SMALLEST = 1  # the tests' activations are small
    dist.init_process_group("gloo")
    results = {}
    for name in names:
        case = CASES[name]
        try:
            results[name] = globals()[case.get("run", "compare")](case)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
            traceback.print_exc()
            break  # the other ranks may be elsewhere by now
    with open(f"{output}.{dist.get_rank()}", "w") as file:
        json.dump(results, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
