"""Carries torch's own copies between GPUs and pinned host memory over every path, within a
scope."""

from __future__ import annotations

from typing import Any, Protocol

from glake import _C, arguments
from glake.errors import Forked
from glake.transfer import tensors
from glake.transfer.engine import default_engine

_HOST, _ELSEWHERE = -1, -3  # results of _place(): pinned host memory; any other memory


class Copying(Protocol):
    """The context manager that torch_copies() returns.

    Attributes:
        bytes: how many the engine has copied in this context so far.
    """

    bytes: int

    def __enter__(self) -> Copying: ...

    def __exit__(self, *_: object) -> None: ...


def torch_copies(min_bytes: int | str = "1MiB") -> Copying:
    """Sends this thread's large `copy_` and `.to(device)` calls of torch through the engine, inside
    a `with`.

    These are copies of `min_bytes` or more between a GPU and pinned host memory, of one dtype,
    contiguous at both ends, without a gradient to record. They have the same effect as in torch:
    with `non_blocking` they are done when the GPU's current stream has come to them. torch makes
    all other copies. Each torch call in the scope takes some microseconds more, so put the scope
    around the few lines that copy. `bytes` of the object that it returns says how much the engine
    has copied.

    Args:
        min_bytes: bytes, or text such as "1MiB".

    Raises:
        InvalidArgument: no such size.
        WrongType: neither a number nor text.
    """
    scope: Copying = _mode()(arguments.size("min_bytes", min_bytes))
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
                self.bytes = 0

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
                self.bytes += done.nbytes if done is not None else 0
                return func(*args, **kwargs) if done is None else done

        _made = TorchCopies
    return _made


_made: Any = None


def _plain(args: Any, kwargs: Any, least: int) -> bool:
    """Whether all tensors are dense and large enough, and torch does nothing but copy them: there
    is no gradient or tangent, no tracing, capture or transform, and no mode below this one."""
    import torch

    given = [each for each in args if isinstance(each, torch.Tensor)]
    if set(kwargs) - {"non_blocking", "device"} or not all(_dense(each, least) for each in given):
        return False
    recorded = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    frozen = given[0].is_inference() and not torch.is_inference_mode_enabled()
    return not (
        recorded
        or frozen
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
        or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
    )


def _dense(tensor: Any, least: int) -> bool:
    import torch

    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.nbytes >= least
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _copied(dst: Any, src: Any, non_blocking: bool = False) -> Any:
    import torch

    if not isinstance(src, torch.Tensor) or dst.dtype != src.dtype or dst.shape != src.shape:
        return None
    low, high = sorted((_place(dst), _place(src)))
    if low != _HOST or high < 0:
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
    """The number of the GPU that has the memory, also in the emulation. _HOST for pinned memory,
    else _ELSEWHERE."""
    if tensor.device.type == "cuda":
        return int(tensor.device.index)
    if tensor.device.type != "cpu":
        return _ELSEWHERE
    try:
        default_engine()
    except Forked:  # a worker of a DataLoader: glake has none of its memory
        return _ELSEWHERE
    gpu, known = _C.place_of(tensor.data_ptr())
    return int(gpu) if gpu >= 0 else _HOST if known else _ELSEWHERE
