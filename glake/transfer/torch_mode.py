"""torch's own copies between GPUs and pinned host memory, over every path, within a scope."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from glake import _C, arguments
from glake.transfer import tensors
from glake.transfer.engine import default_engine

_HOST, _ELSEWHERE = -1, -3  # of _place: pinned host memory; pageable, or no CPU's or CUDA's


def torch_copies(min_bytes: int | str = "1MiB") -> AbstractContextManager[Any]:
    """Within it, large `copy_` and `.to(device)` of the thread go through the engine.

    Those are copies of `min_bytes` or more between a GPU and pinned host memory, of one dtype,
    contiguous at both ends, without a gradient to record. They mean what they do in torch: with
    `non_blocking` they are done when the GPU's current stream has come to them. All others are
    torch's. Each torch call in the scope costs some microseconds more: hooks put it around the
    few methods that copy.

    Args:
        min_bytes: bytes, or text such as "1MiB".

    Raises:
        InvalidArgument, WrongType: no size.
    """
    scope: AbstractContextManager[Any] = _mode()(arguments.size("min_bytes", min_bytes))
    return scope


def _mode() -> Any:
    global _made
    if _made is None:
        import torch
        from torch.overrides import TorchFunctionMode

        class TorchCopies(TorchFunctionMode):
            def __init__(self, least: int) -> None:
                super().__init__()
                self._least = least

            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                kwargs = kwargs or {}
                if func is torch.Tensor.copy_ and _plain(args, kwargs, self._least):
                    done = _copied(*args, **kwargs)
                elif func is torch.Tensor.to and _plain(args[:1], {}, self._least):
                    done = _moved(*args, **kwargs)
                else:
                    done = None
                return func(*args, **kwargs) if done is None else done

        _made = TorchCopies
    return _made


_made: Any = None


def _plain(args: Any, kwargs: Any, least: int) -> bool:
    """Whether all tensors are dense, large enough, and outside of autograd and captures."""
    import torch

    given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    recorded = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    return (
        not recorded
        and all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in given)
        and all(each.layout is torch.strided for each in given)
        and all(each.nbytes >= least and each.is_contiguous() for each in given)
        and not any(each.is_conj() or each.is_neg() for each in given)
        and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
    )


def _copied(dst: Any, src: Any, non_blocking: bool = False) -> Any:
    import torch

    if (
        not isinstance(src, torch.Tensor)
        or dst.dtype != src.dtype
        or dst.shape != src.shape
        or sorted((_place(dst), _place(src)))[0] != _HOST
        or max(_place(dst), _place(src)) < 0
    ):
        return None
    transfer = default_engine().copy(dst, src)
    if not (non_blocking and transfer.ordered):
        transfer.wait()
    return dst


def _moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    import torch

    device = args[0] if len(args) == 1 else kwargs.get("device")
    extra = set(kwargs) - {"device", "non_blocking"}
    if extra or len(args) > 1 or not isinstance(device, str | torch.device):
        return None
    if torch.device(device).type != "cuda" or _place(tensor) != _HOST:
        return None
    return tensors.moved(default_engine(), tensor, device, bool(kwargs.get("non_blocking", False)))


def _place(tensor: Any) -> int:
    """A GPU's number, in the emulation too; _HOST for pinned memory, else _ELSEWHERE."""
    if tensor.device.type == "cuda":
        return int(tensor.device.index)
    if tensor.device.type != "cpu":
        return _ELSEWHERE
    default_engine()
    gpu, known = _C.place_of(tensor.data_ptr())
    return int(gpu) if gpu >= 0 else _HOST if known else _ELSEWHERE
