"""The cases that ranks run: how the model is sharded, and what happens to it."""

import functools

import nets
import torch
import torch.distributed as dist


def failing(sharded, net, number, optimizer):
    """In some steps a forward pass fails first, once with blocks gathered ahead."""
    if number in (2, 5):
        net.fail_at = number - 2 if number == 2 else 2
        tokens = torch.zeros(2, 8, dtype=torch.int64)
        try:
            sharded(tokens)
        except RuntimeError as error:
            assert "made to fail" in str(error)
        else:
            raise AssertionError("the forward pass should have failed")
        finally:
            net.fail_at = None
        for module in net.modules():
            if hasattr(module, "reset_iter_state") and module is net:
                module.reset_iter_state()


def block_backward(sharded, net, number, optimizer):
    """Before some steps a block is used by itself, and trained."""
    if number % 3 == 1:
        torch.manual_seed(number)
        optimizer.zero_grad()
        net.blocks[1](torch.randn(2, 4, 13)).square().mean().backward()
        optimizer.step()


def sometimes_used(sharded, net, number, optimizer):
    """The first block never uses its spare layer. The second stops, but keeps moments of it."""
    net.blocks[0].used = False
    net.blocks[1].used = number < 3


def used_by_one_rank(sharded, net, number, optimizer):
    """One rank alone uses a layer, of which fully_shard must be told."""
    net.blocks[1].used = dist.get_rank() == 1
    for module in net.modules():
        if hasattr(module, "set_reduce_scatter_unused_params"):
            module.set_reduce_scatter_unused_params(True)


def evaluating(sharded, net, number, optimizer):
    """Passes without gradients come in between."""
    tokens = torch.arange(16).view(2, 8)
    with torch.no_grad():
        sharded(tokens)
    with torch.inference_mode():
        sharded(tokens)


BF16 = {"compute_dtype": "bfloat16", "reduce_dtype": "float32"}
# The zoo's gradients are small, and Adam makes full steps even of their rounding errors. So the
# parameters of both sides differ more than in other cases. At ten times this rate losses differ
# too, on some processors.
ZOO = {"lr": 1e-3, "parameters": 5e-4}
CASES = {
    "plain": {},
    "kept": {"sharding": {"reshard_after_forward": False}},
    "no prefetch": {"sharding": {"prefetch": 0}},
    "two ahead": {"sharding": {"prefetch": 2}},
    "accumulation": {"micro": 3},
    "checkpointing": {"sharding": {"recompute": True}},
    "offload": {"sharding": {"offload": "parameters"}},
    "offload, kept": {"sharding": {"offload": "parameters", "reshard_after_forward": False}},
    "offload bf16": {"sharding": {**BF16, "offload": "parameters"}, "tolerance": 2e-3},
    "activations": {"sharding": {"activation_offload": True}},
    "activations, checkpointing": {"sharding": {"activation_offload": True, "recompute": True}},
    "bf16": {"sharding": BF16, "tolerance": 2e-3},
    "bf16 accumulation": {"sharding": BF16, "micro": 3, "tolerance": 2e-3},
    "lora": {"net": {"kind": nets.LoRA, "frozen": True}},
    "lora, root trained": {"net": {"kind": nets.LoRA}},
    "lora on bf16": {
        "net": {"kind": functools.partial(nets.LoRA, base=torch.bfloat16), "frozen": True}
    },
    "moe": {"net": {"kind": nets.MoE}},
    "moe checkpointing": {"net": {"kind": nets.MoE}, "sharding": {"recompute": True}},
    # See ZOO.
    "zoo gpt": {**ZOO, "zoo": "gpt-tiny"},
    "zoo moe": {**ZOO, "zoo": "moe-tiny", "sharding": {"recompute": True}},
    # Both sides give first values to a model on the meta device, by the same seed.
    "meta": {**ZOO, "zoo": "gpt-tiny", "meta": True},
    "meta moe": {**ZOO, "zoo": "moe-tiny", "meta": True},
    "meta offload": {
        **ZOO,
        "zoo": "llama-tiny",
        "meta": True,
        "sharding": {"offload": "parameters"},
    },
    "tied": {"net": {"tied": True}},
    "twice": {"net": {"twice": True}},
    "twice, kept": {"net": {"twice": True}, "sharding": {"reshard_after_forward": False}},
    "block backward": {"before": block_backward},
    "partial": {"partial": True},
    "failing": {"before": failing},
    "evaluating": {"before": evaluating},
    "unused": {"net": {"kind": nets.Spare}, "before": sometimes_used},
    "unused, accumulation": {"net": {"kind": nets.Spare}, "before": sometimes_used, "micro": 2},
    "unused, bf16 offload": {
        "net": {"kind": nets.Spare},
        "before": sometimes_used,
        "sharding": {**BF16, "offload": "parameters"},
        "tolerance": 2e-3,
    },
    "together": {
        "net": {"kind": nets.LoRA, "twice": True},
        "sharding": {**BF16, "offload": "parameters", "recompute": True},
        "before": failing,
        "micro": 2,
        "tolerance": 2e-3,
    },
    "used by one rank": {"net": {"kind": nets.Spare}, "before": used_by_one_rank},
}
PARITY = list(CASES)
# Cases for 1, 2 and 4 ranks. No number of ranks divides the nets' shapes, and one of four ranks has
# none of a router's three rows. "partial" and "block backward" begin a backward pass at a block.
EVERYWHERE = [
    *("plain", "kept", "accumulation", "checkpointing", "offload", "bf16", "lora", "moe"),
    *("tied", "twice", "block backward", "partial", "failing", "meta", "together"),
]
SAVED = {
    "plain": {},
    "lora": {"net": {"kind": nets.LoRA, "frozen": True}},
    "offload tied": {"net": {"tied": True}, "sharding": {"offload": "parameters"}},
}
for name, case in SAVED.items():
    CASES[f"save {name}"] = {**case, "saved": name, "run": "save"}
    CASES[f"load {name}"] = {**case, "saved": name, "run": "load"}
CASES["put"] = {"net": {"tied": True}, "run": "put"}
CASES["put offload"] = {"sharding": {"offload": "parameters"}, "run": "put"}

SAVES, LOADS = ([f"{verb} {name}" for name in SAVED] for verb in ("save", "load"))
# What each number of ranks runs. Two ranks come first, as the others load their checkpoints.
RUNS = {
    2: [*PARITY, *SAVES, "put", "put offload"],
    4: [*EVERYWHERE, "activations", "unused", *LOADS],
    3: [*LOADS, "put"],
    1: [*EVERYWHERE, *LOADS],
}
# What `make test` leaves of these to `make test-all`. In both, 2 ranks run every case.
FULL_WIDTH = {(4, name) for name in [*EVERYWHERE, "unused"] if name not in ("plain", "moe")}
