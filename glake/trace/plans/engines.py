"""How a model is spread over GPUs, and how its weights are updated. There is a class for each
strategy. All of them show what rank 0 does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from glake.trace.plans import models
from glake.trace.plans.configs import Model
from glake.trace.plans.options import PlanOptions

_BETAS, _RATE = (0.9, 0.95), 1e-4


def make_optimizer(parameters: Iterable[Any], options: PlanOptions, device: str) -> Any:
    """The optimizer over ``parameters``.

    `foreach`, torch's default on a GPU, is set here. torch chooses it by itself only for plain CUDA
    tensors, and fake tensors are none.
    """
    import torch

    if options.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=_RATE, foreach=device != "cpu")
    how = {"foreach": options.optimizer == "adamw"}
    if options.optimizer == "adamw-fused":
        how = {"fused": True}
    if device == "cpu" and options.offload != "none":
        how = {"fused": True}  # one kernel, no temporaries, as offloading libraries do
    return torch.optim.AdamW(parameters, lr=_RATE, betas=_BETAS, **how)


class HostOptimizer:
    """AdamW on the host, which has float32 weights and states. Gradients are copied there in their
    own dtype.

    ``step`` leaves no gradient on the device and copies the new weights back.
    """

    def __init__(self, parameters: list[Any], options: PlanOptions) -> None:
        import torch

        self._device = parameters
        self._host = [_local(each).detach().to("cpu", torch.float32) for each in parameters]
        self._optimizer = make_optimizer(self._host, options, "cpu")

    def step(self) -> None:
        import torch

        with torch.no_grad():
            for device, host in zip(self._device, self._host, strict=True):
                if device.grad is None:
                    continue
                host.grad = _local(device.grad).to("cpu", non_blocking=True).float()
                device.grad = None
            self._optimizer.step()
            for device, host in zip(self._device, self._host, strict=True):
                _local(device).copy_(host, non_blocking=True)

    def zero_grad(self) -> None:
        for host in self._host:
            host.grad = None


def _local(tensor: Any) -> Any:
    """This rank's part of a DTensor, or a plain tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Engine:
    """One replica on one GPU. Call ``backward`` for each micro-batch, then ``step``."""

    def __init__(self, job: Any, model: Model, options: PlanOptions, *, head: str = "lm") -> None:
        self.options = options
        self.device: str = job.device
        self.world: int = job.world
        self.model = self._prepare(job, model, head)
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = self._optimizer()

    def _prepare(self, job: Any, model: Model, head: str) -> Any:
        return models.build(model, self.options, self.device, head=head)

    def _optimizer(self) -> Any:
        if self.options.offload == "optimizer":
            return HostOptimizer(self.parameters, self.options)
        device = "cpu" if self.options.offload == "params" else self.device
        return make_optimizer(self.parameters, self.options, device)

    def autocast(self) -> Any:
        """The context of a forward pass."""
        import torch

        held, work = models.dtypes(self.options)
        mixed = self.options.precision == "mixed" and self.options.strategy in ("single", "ddp")
        if not mixed or (held == work and not self.options.lora):
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=work)

    def backward(self, loss: Any, last: bool = True) -> None:
        """The backward pass of one micro-batch. ``last``: it is the last of its step."""
        loss.backward()

    def step(self) -> None:
        """Clips gradients, updates the weights and frees the gradients."""
        import torch

        if self.options.clip:
            torch.nn.utils.clip_grad_norm_(
                self.parameters, self.options.clip, foreach=self.device != "cpu"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()


class _NoLogger:
    """Takes every call of torch's DDP logger and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class _FirstBuckets:
    """DDP's reducer, except that it keeps the buckets with which it began.

    After the first step torch makes new buckets, in the order in which gradients came. They are as
    large, but hold other gradients. To make them, ranks exchange values, which fake tensors do not
    have.
    """

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


class DataParallel(Engine):
    """torch's DistributedDataParallel. It has buckets of gradients beside the gradients
    themselves."""

    def _prepare(self, job: Any, model: Model, head: str) -> Any:
        import torch

        built = super()._prepare(job, model, head)
        # Comparing shapes between ranks reads values, which fake tensors do not have.
        spread = torch.nn.parallel.DistributedDataParallel(built, init_sync=False)
        # DDP's logger times kernels with CUDA events, which a CPU build does not have.
        spread.logger = _NoLogger()
        spread.reducer = _FirstBuckets(spread.reducer)  # type: ignore[assignment]
        # It is a lambda, because torch refuses annotations that are strings.
        spread.register_comm_hook(self.world, lambda world, bucket: _all_reduced(world, bucket))
        return spread

    def backward(self, loss: Any, last: bool = True) -> None:
        self.model.require_backward_grad_sync = last
        loss.backward()


def _all_reduced(world: int, bucket: Any) -> Any:
    """The effect of an all-reduce on a bucket's memory. It works in place and allocates nothing."""
    import torch

    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer().div_(world))
    return done


class FullyShard(Engine):
    """torch's FSDP2. Each block is a unit, and the rest of the model is another one."""

    def _prepare(self, job: Any, model: Model, head: str) -> Any:
        # Weights are made after sharding, because before it no GPU has room for all of them.
        built = models.build(model, self.options, "meta", head=head)
        shard(built, job, self.options)
        built.to_empty(device="cpu" if self.options.offload == "params" else self.device)
        return built

    def backward(self, loss: Any, last: bool = True) -> None:
        self.model.set_requires_gradient_sync(last)
        loss.backward()


def shard(model: Any, job: Any, options: PlanOptions) -> None:
    """Applies ``fully_shard`` to every block of a model, then to the model."""
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    held, work = models.dtypes(options)
    settings: dict[str, Any] = {"reshard_after_forward": options.reshard}
    if (mesh := getattr(job, "mesh", None)) is not None:
        settings["mesh"] = mesh
    if held != work or options.precision == "mixed":
        settings["mp_policy"] = MixedPrecisionPolicy(work, torch.float32)
    if options.offload == "params":
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    for block in models.blocks(model):
        fully_shard(block, **settings)
    fully_shard(model, **settings)


def frozen(job: Any, model: Model, options: PlanOptions, *, head: str = "lm") -> Any:
    """A model that is not trained (a reference or reward model), spread like the trained ones."""
    if options.strategy != "fsdp2":
        return models.build(model, options, job.device, trainable=False, head=head)
    built = models.build(model, options, "meta", trainable=False, head=head)
    shard(built, job, options)
    return built.to_empty(device="cpu" if options.offload == "params" else job.device)
