"""Moves tensors as torch's own `.to(device)` does, over every path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glake import arguments
from glake.errors import InvalidArgument, InvalidDevice
from glake.transfer.engine import Engine, default_engine

if TYPE_CHECKING:
    import torch

    from glake.typing import Device


def to(tensor: torch.Tensor, device: Device, non_blocking: bool = False) -> torch.Tensor:
    """The tensor on `device`, as torch's `.to(device)` gives it. A tensor that is there already is
    returned itself.

    The copy has the tensor's dtype and values, and the strides of a dense tensor. It is
    differentiable. On a GPU it is ready for work on the current stream. With the CPU at either end
    the call returns when the copy is done.

    Args:
        tensor: a dense tensor on the CPU or a GPU.
        device: "cpu", "cuda:0", or a torch.device.
        non_blocking: return at once also with the CPU at one end. The CPU's side is then ready, or
            free to be changed, when the GPU's current stream has come to the copy.

    Raises:
        InvalidArgument: `tensor` is no tensor, or a sparse or fake one; or `device` is neither cpu
            nor cuda.
        InvalidDevice: a GPU that torch does not have, as in the emulation.
        GlakeError: as of Engine.copy.
    """
    target = _target(tensor, device)
    return (
        tensor if tensor.device == target else moved(default_engine(), tensor, target, non_blocking)
    )


def moved(engine: Engine, tensor: Any, device: Any, non_blocking: bool = False) -> Any:
    """Acts as `to`, through an engine."""
    import torch

    target = _target(tensor, device)
    if tensor.device == target:
        return tensor
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _differentiable()(engine, tensor, target, non_blocking)
    return _copied(engine, tensor, target, non_blocking)


def _target(tensor: Any, device: Any) -> Any:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(
            f"to() moves torch tensors, not {arguments.type_name(tensor)}: torch.from_numpy or "
            "torch.from_dlpack makes one of an array, and copy() takes arrays as they are"
        )
    number = arguments.whole(device)
    if number is not None:
        device = f"cuda:{number}"  # torch's own name could be another one without CUDA
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        said = str(error).split("\n")[0]
        raise InvalidArgument(f"device {device!r}: take cpu or cuda:GPU ({said})") from None
    if target.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"device {device!r}: copies are between cpu and cuda")
    if target.type == "cpu" or target == tensor.device:
        return target
    if not torch.cuda.is_available():
        raise InvalidDevice(
            f"device {device!r}: torch {torch.__version__} has no CUDA device. In the emulation "
            "its tensors are in the simulated GPU's memory as they are: copy(dst, src) them from "
            "and to NumPy arrays, which are the host's; other simulated GPUs' memory is "
            "Raw(address, bytes, gpu)"
        )
    gpu = torch.cuda.current_device() if target.index is None else target.index
    if gpu >= torch.cuda.device_count():
        raise InvalidDevice(
            f"device {device!r}: torch has {torch.cuda.device_count()} CUDA devices"
        )
    return torch.device("cuda", gpu)


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
