"""Imitates ZeRO stage 3 of DeepSpeed: each parameter is sharded, and gathered around its module.

It was written from DeepSpeed's published configuration reference and from Rajbhandari et al. 2020
and 2021 (ZeRO, ZeRO-Infinity), with DeepSpeed's default sizes. 16-bit partitions and float32
masters are in flat buffers of at most a billion elements. Each module's weights are gathered before
its forward and its backward pass, into one flat buffer for each fetch. Later weights are prefetched
in the order of the first batch. Small parameters stay whole. There is one reduction bucket.
Partitions may be on the host. Not modelled are quantised communication, NVMe, hierarchical
partitioning and DeepSpeed's own activation checkpointing. Recomputation is torch's reentrant kind,
because the other kind would hold gathered weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from dataclasses import dataclass, field
from typing import Any

from glake.errors import InvalidOption
from glake.trace import kinds
from glake.trace.plans import engines, models, moe
from glake.trace.plans.configs import Model

# DeepSpeed's defaults, in elements.
SUB_GROUP = 1_000_000_000
PREFETCH_BUCKET = 50_000_000
REDUCE_BUCKET = 500_000_000
MOST_LIVE = 1_000_000_000
REUSE_DISTANCE = 1_000_000_000
PERSISTENT = 100_000


@dataclass(eq=False)
class Sharded:
    """A parameter: its whole shape, this rank's part, and whether it is gathered now."""

    parameter: Any
    shape: Any
    numel: int
    part: int
    shard: Any = None
    gradient: Any = None
    whole: bool = False

    @property
    def persistent(self) -> bool:
        return self.numel <= PERSISTENT


@dataclass
class Order:
    """The modules in the order in which a batch fetched them, forward and backward."""

    seen: list[list[Sharded]] = field(default_factory=list)
    complete: bool = False
    at: int = 0


class Zero3(engines.Engine):
    """Rank 0 of a ZeRO-3 group. Its collectives are only the buffers that they need."""

    def _prepare(self, job: Any, model: Model, head: str) -> Any:
        import torch

        if moe.is_moe(model.build()):
            raise InvalidOption(
                f"strategy=zero3 does not model a mixture of experts ({model.name}): use fsdp2"
            )
        built = models.build(model, self.options, "meta", head=head)
        self._streams = (
            (torch.cuda.Stream(), torch.cuda.Stream()) if self.device != "cpu" else (None, None)
        )
        self._order = Order()
        self._live = 0
        self._shard(built)
        for buffer_owner in built.modules():
            for name, buffer in list(buffer_owner.named_buffers(recurse=False)):
                moved = torch.empty_like(buffer, device=self.device)
                buffer_owner.register_buffer(name, moved, persistent=False)
        self._hook(built)
        return built

    # Set-up ---------------------------------------------------------------------------------

    def _shard(self, model: Any) -> None:
        """Replaces every parameter by an empty one and allocates the partitions."""
        import torch

        known: dict[int, Sharded] = {}
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) not in known:
                    empty = torch.empty(0, dtype=parameter.dtype, device=self.device)
                    held = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
                    part = -(-parameter.numel() // self.world)
                    known[id(parameter)] = Sharded(held, parameter.shape, parameter.numel(), part)
                setattr(module, name, known[id(parameter)].parameter)
        self._known = {id(each.parameter): each for each in known.values()}
        self._allocate(list(known.values()))

    def _allocate(self, every: list[Sharded]) -> None:
        import torch

        home = "cpu" if self.options.offload == "params" else self.device
        states = self.device if self.options.offload == "none" else "cpu"
        trained = [each for each in every if each.parameter.requires_grad]
        self._groups: list[tuple[Any, Any, Any]] = []
        for group in _sub_groups(trained):
            size = sum(each.part for each in group)
            kind = group[0].parameter.dtype
            flat = torch.empty(size, dtype=kind, device=home)
            gradient = torch.empty(size, dtype=kind, device=states)
            kinds.kind(flat, "parameter")
            kinds.kind(gradient, "gradient")
            master = torch.empty(size, dtype=torch.float32, device=states, requires_grad=True)
            self._groups.append((flat, gradient, master))
            start = 0
            for each in group:
                each.shard = flat.narrow(0, start, each.part)
                each.gradient = gradient.narrow(0, start, each.part)
                start += each.part
        for each in every:
            if each.shard is None:
                each.shard = torch.empty(each.part, dtype=each.parameter.dtype, device=home)
                kinds.kind(each.shard, "parameter")
        kind = trained[0].parameter.dtype if trained else torch.bfloat16
        self._bucket = torch.empty(REDUCE_BUCKET, dtype=kind, device=self.device)
        kinds.kind(self._bucket, "communication")
        self._in_bucket: list[Sharded] = []
        self._filled = 0

    def _hook(self, model: Any) -> None:
        import torch

        for module in model.modules():
            own = [self._known[id(each)] for each in module.parameters(recurse=False)]
            if not own:
                continue
            module.register_forward_pre_hook(functools.partial(self._before, own))
            module.register_forward_hook(functools.partial(self._after, own))
            module.register_full_backward_pre_hook(functools.partial(self._before, own))
            frozen = [each for each in own if not each.parameter.requires_grad]
            module.register_full_backward_hook(functools.partial(self._after, frozen))
            if type(module) is torch.nn.Linear:
                module.forward = functools.partial(_linear, module)  # type: ignore[method-assign]
        made = weakref.WeakMethod(self._gradient_made)  # C++ holds a parameter's hooks
        for each in self._known.values():
            if each.parameter.requires_grad:
                each.parameter.register_post_accumulate_grad_hook(
                    lambda parameter, each=each: made()(each, parameter)  # type: ignore[misc]
                )

    # Gathering and letting go -----------------------------------------------------------------

    def _before(self, own: list[Sharded], *_: Any) -> None:
        self._fetch([each for each in own if not each.whole])
        order = self._order
        if not order.complete:
            order.seen.append(own)
        else:
            self._prefetch()
        order.at += 1

    def _after(self, own: list[Sharded], *_: Any) -> None:
        soon = self._used_soon()
        for each in own:
            if each.whole and not each.persistent and id(each) not in soon:
                self._release(each)

    def _prefetch(self) -> None:
        """Gathers at once the next parameters of the known order, up to a bucket."""
        room = PREFETCH_BUCKET
        ahead: list[Sharded] = []
        for group in self._order.seen[self._order.at + 1 :]:
            for each in group:
                if each.whole or each in ahead:
                    continue
                room -= each.numel
                if room < 0 or self._live + each.numel > MOST_LIVE:
                    self._fetch(ahead)
                    return
                ahead.append(each)
        self._fetch(ahead)

    def _used_soon(self) -> set[int]:
        if not self._order.complete:
            return set()
        distance = 0
        soon: set[int] = set()
        for group in self._order.seen[self._order.at :]:
            for each in group:
                distance += each.numel
                if distance > REUSE_DISTANCE:
                    return soon
                soon.add(id(each))
        return soon

    def _fetch(self, wanted: list[Sharded]) -> None:
        """An all-gather. Several parameters go through one flat buffer, and a single one needs no
        buffer."""
        import torch

        if not wanted:
            return
        with self._on(self._streams[0]), torch.no_grad():
            shards = [each.shard.to(self.device, non_blocking=True) for each in wanted]
            if self.world == 1:
                wholes = shards
            elif len(wanted) == 1:
                wholes = [shards[0].new_empty(wanted[0].part * self.world)]
            else:
                flat = shards[0].new_empty(sum(each.part for each in wanted) * self.world)
                wholes = [torch.cat([flat.narrow(0, 0, each.part)] * self.world) for each in wanted]
            for each, whole in zip(wanted, wholes, strict=True):
                each.parameter.data = whole.narrow(0, 0, each.numel).view(each.shape)
                each.whole = True
                self._live += each.numel

    def _release(self, each: Sharded) -> None:
        import torch

        if self._streams[0] is not None:
            each.parameter.data.record_stream(torch.cuda.current_stream())
        each.parameter.data = each.shard.new_empty(0, device=self.device)
        each.whole = False
        self._live -= each.numel

    def _on(self, stream: Any) -> Any:
        import torch

        return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()

    # Gradients and the update -----------------------------------------------------------------

    def _gradient_made(self, each: Sharded, parameter: Any) -> None:
        if self._filled + each.numel > REDUCE_BUCKET:
            self._reduce()
        if each.numel <= REDUCE_BUCKET:
            place = self._bucket.narrow(0, self._filled, each.numel)
            place.copy_(parameter.grad.view(-1))
            parameter.grad = None
        self._in_bucket.append(each)
        self._filled += each.numel
        self._after([each])

    def _reduce(self) -> None:
        """A reduce-scatter of the bucket. This rank's part goes to its gradient partition."""
        import torch

        with self._on(self._streams[1]), torch.no_grad():
            if self._in_bucket:
                padded = sum(each.part for each in self._in_bucket) * self.world
                parts = self._bucket.new_empty(padded)
                if self.world == 1:
                    parts.copy_(self._bucket.narrow(0, 0, padded))
                start = 0
                for each in self._in_bucket:
                    mine = parts.narrow(0, start, each.part)
                    each.gradient.copy_(mine, non_blocking=True)
                    each.parameter.grad = None
                    start += each.part
        self._in_bucket, self._filled = [], 0

    def backward(self, loss: Any, last: bool = True) -> None:
        loss.backward()
        self._reduce()
        self._order.complete = True
        self._order.at = 0
        for each in self._known.values():
            if each.whole and not each.persistent:
                self._release(each)

    def _optimizer(self) -> Any:
        masters = [master for _, _, master in self._groups]
        device = self.device if self.options.offload == "none" else "cpu"
        options = self.options
        if options.optimizer == "adamw":  # DeepSpeed's own is a fused kernel
            options = dataclasses.replace(options, optimizer="adamw-fused")
        return [engines.make_optimizer([each], options, device) for each in masters]

    def step(self) -> None:
        """Updates one sub-group at a time: float32 gradient, update, and then its new 16-bit
        partition."""
        import torch

        with torch.no_grad():
            if self.options.clip:
                for _, gradient, _ in self._groups:
                    gradient.float().norm()
            for optimizer, (flat, gradient, master) in zip(
                self.optimizer, self._groups, strict=True
            ):
                master.grad = gradient.float()
                master.grad.mul_(1.0)
                optimizer.step()
                master.grad = None
                flat.copy_(master, non_blocking=True)


def _sub_groups(every: list[Sharded]) -> list[list[Sharded]]:
    groups: list[list[Sharded]] = []
    room = 0
    for each in every:
        if each.part > room:
            groups.append([])
            room = SUB_GROUP
        groups[-1].append(each)
        room -= each.part
    return groups


@functools.cache
def _linear_function() -> Any:
    """A linear layer whose graph keeps the parameter itself, and not its gathered bytes.

    torch's own function saves a transposed view, which would keep a released weight alive.
    """
    import torch

    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Any, weight: Any, bias: Any) -> Any:
            ctx.save_for_backward(given, weight)
            ctx.biased = bias is not None
            return torch.nn.functional.linear(given, weight, bias)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            given, weight = ctx.saved_tensors
            rows = gradient.reshape(-1, gradient.shape[-1])
            for_given = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
            for_weight = for_bias = None
            if ctx.needs_input_grad[1]:
                for_weight = rows.t().matmul(given.reshape(-1, given.shape[-1]))
            if ctx.biased and ctx.needs_input_grad[2]:
                for_bias = rows.sum(0)
            return for_given, for_weight, for_bias

    return Linear


def _linear(module: Any, given: Any) -> Any:
    return _linear_function().apply(given, module.weight, module.bias)
