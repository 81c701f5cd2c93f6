"""Assumes sizes and numbers that depend on data, which no fake tensor has. Each assumption is
counted and reported.

A tensor may have an expected mean of its elements (`_glake_mean`). For indices that are drawn
evenly, it may have the number from which they are drawn (`_glake_range`). So the `one_hot` of a
balanced router has a mean of 1/experts, its sum is tokens/experts, and `nonzero` returns that many
rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from glake import arguments
from glake.errors import InvalidArgument, PlanError, WrongType

_aten = torch.ops.aten

_SAME = {
    _aten.view, _aten._unsafe_view, _aten.reshape, _aten.permute, _aten.transpose, _aten.t,
    _aten.select, _aten.slice, _aten.squeeze, _aten.unsqueeze, _aten.expand, _aten._to_copy,
    _aten.clone, _aten.detach, _aten.alias, _aten.contiguous, _aten.flatten, _aten.unbind,
    _aten.split, _aten.split_with_sizes, _aten.index_select, _aten.gather, _aten.lift_fresh,
    _aten.copy_,
}  # fmt: skip
_COMPARISONS = {_aten.eq, _aten.ne, _aten.lt, _aten.le, _aten.gt, _aten.ge}
_CONSTANT = {_aten.zeros: 0.0, _aten.zeros_like: 0.0, _aten.new_zeros: 0.0, _aten.zero_: 0.0,
             _aten.ones: 1.0, _aten.ones_like: 1.0, _aten.new_ones: 1.0,
             _aten.isnan: 0.0, _aten.isinf: 0.0}  # fmt: skip
_DEFAULT_SHARE = 0.5


def assume(tensor: torch.Tensor, mean: float) -> torch.Tensor:
    """Tells `glake plan` the mean of a tensor's elements, if data decides a size.

    A mask with mean 0.25 has a quarter of its elements set. Outside a plan nothing happens.

    Args:
        tensor: a tensor of the job.
        mean: the mean of its elements.

    Returns:
        The tensor.

    Raises:
        WrongType: `tensor` is no tensor, or `mean` is no number.
        InvalidArgument: `mean` is not finite.
    """
    if not isinstance(tensor, torch.Tensor):
        raise WrongType(f"a tensor of the job, not {arguments.type_name(tensor)}")
    if isinstance(mean, bool) or not isinstance(mean, Real):
        raise WrongType(f"mean {mean!r}: a number, such as 0.25 of a mask with a quarter set")
    if not math.isfinite(mean):
        raise InvalidArgument(f"mean {mean}: a finite number")
    marked: Any = tensor
    marked._glake_mean = float(mean)
    return tensor


class Expected:
    """Runs operators. If a result depends on data, it is assumed.

    `recording` makes a context. Operators that are called here inside it are recorded with the job.
    """

    def __init__(self, recording: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._recording = recording
        self.assumptions: Counter[str] = Counter()
        self._rules: dict[Any, Callable[..., Any]] = {
            _aten._local_scalar_dense: self._item,
            _aten.nonzero: self._nonzero,
            _aten.index: self._index,
            _aten.index_put_: self._index_put,
            _aten.masked_select: self._masked_select,
            _aten.repeat_interleave: self._repeat_interleave,
            _aten.equal: self._equal,
            _aten.bincount: self._bincount,
            _aten._unique2: self._unique,
        }

    def call(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Runs the operator in the fake mode. Raises PlanError if its result depends on data and
        nothing can be assumed."""
        packet = func.overloadpacket
        rule = self._rules.get(packet)
        if rule is not None:
            return rule(func, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException) as unknown:
            raise PlanError(
                f"{func}: the size of its result depends on data, which a plan does not have, and "
                "glake knows no expected value for it"
            ) from unknown
        self._carry(packet, func, args, out)
        return out

    # -- what is known of a result --------------------------------------------------------------

    def _carry(self, packet: Any, func: Any, args: Any, out: Any) -> None:
        if packet in _CONSTANT:
            _note(out, mean=_CONSTANT[packet])
        elif packet in (_aten.full, _aten.fill_, _aten.full_like, _aten.new_full):
            value = args[2] if packet is _aten.new_full else args[1]
            if isinstance(value, (bool, int, float)):
                _note(out, mean=float(value))
        elif packet in _SAME and args:
            # copy_ fills its first argument from its second.
            source = args[1] if packet is _aten.copy_ else args[0]
            _inherit(out, source)
        elif packet is _aten.topk or packet is _aten.sort:
            dim = args[2] if packet is _aten.topk and len(args) > 2 else -1
            if args[0].dim():
                _note(out[1], drawn_from=args[0].shape[dim])
        elif packet in (_aten.argmax, _aten.argmin) and len(args) > 1 and args[1] is not None:
            _note(out, drawn_from=args[0].shape[args[1]])
        elif packet is _aten.randint:
            high = args[1] if func is _aten.randint.low else args[0]
            _note(out, drawn_from=high)
        elif packet in _COMPARISONS:
            _note(out, mean=_share(packet, args))
        elif packet in (_aten.scatter_, _aten.scatter):
            self._scatter(args, out)
        elif packet in (_aten.sum, _aten.histc):
            self._total(packet, args, out)
        elif packet in (_aten.any, _aten.all):
            self._any(packet is _aten.all, args[0], out)
        elif packet in (_aten.logical_not, _aten.bitwise_not):
            mean = _mean(args[0])
            _note(out, mean=None if mean is None else 1.0 - mean)

    def _scatter(self, args: Any, out: Any) -> None:
        before, index, value = _mean(args[0]), args[2], args[3]
        if before == 0.0 and isinstance(value, (int, float)) and out.numel():
            _note(out, mean=min(1.0, index.numel() * value / out.numel()))

    def _any(self, every: bool, tensor: Any, out: Any) -> None:
        mean, each = _mean(tensor), tensor.numel() / max(1, out.numel())
        if mean is None:
            _note(out, mean=1.0 if every else 0.0)
        else:
            _note(out, mean=mean**each if every else 1.0 - (1.0 - mean) ** each)

    def _total(self, packet: Any, args: Any, out: Any) -> None:
        if packet is _aten.histc:
            _note(out, mean=args[0].numel() / max(1, out.numel()))
            return
        mean = _mean(args[0])
        if mean is not None and out.numel():
            _note(out, mean=mean * args[0].numel() / out.numel())

    # -- operators whose result depends on data -------------------------------------------------

    def _item(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        try:
            return func(*args, **kwargs)  # the fake mode remembers small constants
        except DataDependentOutputException:
            pass
        mean = _mean(tensor)
        if tensor.dtype is torch.bool:
            self.assumptions[
                "where code asks whether a tensor is true: all() is, anything else is not"
            ] += 1
            return bool(mean is not None and mean >= 1.0)
        if tensor.dtype.is_floating_point:
            self.assumptions["item() of a float: its expected value, else 1.0"] += 1
            return 1.0 if mean is None else mean
        if mean is None and (drawn_from := _range(tensor)) is not None:
            mean = (drawn_from - 1) / 2
        if mean is None:
            raise PlanError(
                "item() of an integer tensor: its value depends on data, which a plan does not "
                "have; tell its mean with glake.trace.assume(tensor, mean)"
            )
        self.assumptions["item() of an integer: its expected value, routing being balanced"] += 1
        return round(mean)

    def _nonzero(self, func: Any, args: Any, kwargs: Any) -> Any:
        mask = args[0]
        rows = self._rows(mask)
        return mask.new_empty((rows, mask.dim()), dtype=torch.int64)

    def _rows(self, mask: Any) -> int:
        mean = _mean(mask)
        if mean is None:
            self.assumptions["nonzero or a mask of unknown content: half of the elements"] += 1
            mean = _DEFAULT_SHARE
        else:
            self.assumptions["nonzero or a mask: the expected share of the elements"] += 1
        rows: int = round(mean * mask.numel())
        return max(0, min(int(mask.numel()), rows))

    def _without_masks(self, indices: Any) -> list[Any]:
        """Replaces a mask by the indices of its nonzero elements, as the real operators do."""
        out: list[Any] = []
        for each in indices:
            if each is not None and each.dtype in (torch.bool, torch.uint8):
                with self._recording():
                    out.extend(torch.nonzero(each).unbind(1))
            else:
                out.append(each)
        return out

    def _index(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(args[0], self._without_masks(args[1]), **kwargs)

    def _index_put(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(args[0], self._without_masks(args[1]), *args[2:], **kwargs)

    def _masked_select(self, func: Any, args: Any, kwargs: Any) -> Any:
        rows = self._rows(args[1].expand(torch.broadcast_shapes(args[0].shape, args[1].shape)))
        return args[0].new_empty((rows,))

    def _repeat_interleave(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is not _aten.repeat_interleave.Tensor or kwargs.get("output_size") is not None:
            return func(*args, **kwargs)
        repeats = args[0]
        mean = _mean(repeats)
        if mean is None:
            raise PlanError(
                "repeat_interleave: its output_size depends on data; give output_size, or tell "
                "the mean of repeats with glake.trace.assume(repeats, mean)"
            )
        self.assumptions["repeat_interleave: the expected number of repeats"] += 1
        return repeats.new_empty((round(mean * repeats.numel()),))

    def _equal(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.assumptions["equal(): false"] += 1
        return False

    def _bincount(self, func: Any, args: Any, kwargs: Any) -> Any:
        least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        bins = max(int(least), _range(args[0]) or 0)
        if not bins:
            raise PlanError("bincount: the number of bins depends on data: give minlength")
        self.assumptions["bincount: even counts"] += 1
        return _note(args[0].new_empty((bins,), dtype=torch.int64), args[0].numel() / bins)

    def _unique(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        distinct = min(int(tensor.numel()), _range(tensor) or int(tensor.numel()))
        self.assumptions["unique: as many as could be distinct"] += 1
        empty = tensor.new_empty
        inverse = empty(tensor.shape, dtype=torch.int64)
        return empty((distinct,)), inverse, empty((distinct,), dtype=torch.int64)


def _mean(tensor: Any) -> float | None:
    return getattr(tensor, "_glake_mean", None)


def _range(tensor: Any) -> int | None:
    return getattr(tensor, "_glake_range", None)


def _share(packet: Any, args: Any) -> float | None:
    """The share of evenly drawn indices for which a comparison holds."""
    drawn_from = _range(args[0])
    if drawn_from is None and isinstance(args[1], torch.Tensor):
        drawn_from = _range(args[1])
    if drawn_from is None:
        return None
    if packet is _aten.eq:
        return 1.0 / drawn_from
    if packet is _aten.ne:
        return 1.0 - 1.0 / drawn_from
    return None


def _note(out: Any, mean: float | None = None, drawn_from: int | None = None) -> Any:
    for each in out if isinstance(out, (tuple, list)) else (out,):
        if isinstance(each, torch.Tensor):
            each._glake_mean = mean  # type: ignore[attr-defined]
            each._glake_range = drawn_from  # type: ignore[attr-defined]
    return out


def _inherit(out: Any, source: Any) -> None:
    mean, drawn_from = _mean(source), _range(source)
    if mean is not None or drawn_from is not None:
        _note(out, mean, drawn_from)
