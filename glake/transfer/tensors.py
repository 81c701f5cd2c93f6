"""Tensors moved as torch's own `.to(device)` moves them, over every path."""

from __future__ import annotations

from typing import Any

from glake.transfer.engine import Engine, default_engine


def to(tensor: Any, device: Any, non_blocking: bool = False) -> Any:
    """The tensor on `device`, as torch's `.to(device)` gives it; itself if it is there.

    Dtype, values and, of dense tensors, strides are kept; the copy is differentiable. On a GPU it
    is ready for work on the current stream. With the CPU at either end the call returns when the
    copy is done, unless `non_blocking`: then the CPU's side is ready, or free to be changed, when
    the current stream of the GPU has come to it.

    InvalidArgument for sparse and fake tensors, and devices that are neither cpu nor cuda.
    """
    return moved(default_engine(), tensor, device, non_blocking)


def moved(engine: Engine, tensor: Any, device: Any, non_blocking: bool = False) -> Any:
    """`to`, through an engine."""
    import torch

    target = torch.device(device)
    if target.type == "cuda" and target.index is None:
        target = torch.device("cuda", torch.cuda.current_device())
    if tensor.device == target:
        return tensor
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _differentiable()(engine, tensor, target, non_blocking)
    return _copied(engine, tensor, target, non_blocking)


def _copied(engine: Engine, tensor: Any, target: Any, non_blocking: bool) -> Any:
    import torch

    source = tensor.detach().resolve_conj().resolve_neg()
    from_gpu, to_gpu = source.device.type == "cuda", target.type == "cuda"
    made = torch.empty_like(source, device=target, pin_memory=from_gpu and not to_gpu)
    transfer = engine.copy(made, source)
    if not non_blocking and not (from_gpu and to_gpu):
        transfer.wait()
    return made


def _differentiable() -> Any:
    global _apply
    if _apply is None:
        import torch

        class To(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, engine: Any, tensor: Any, target: Any, quick: bool) -> Any:
                ctx.back = engine, tensor.device
                return _copied(engine, tensor, target, quick)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                engine, device = ctx.back
                return None, moved(engine, gradients[0], device), None, None

        _apply = To.apply
    return _apply


_apply: Any = None
