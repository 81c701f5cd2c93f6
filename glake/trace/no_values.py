"""Makes a clear error, at the job's own line, of a planned job's attempt to read a tensor's values.

glake.trace.expected answers `item()` and the calls that use it (`tolist()`, `if tensor:`). Calls
that copy data out of torch cannot be answered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from glake.errors import PlanError

# numpy.asarray(tensor) calls numpy() through __array__.
_READERS = {"numpy": ".numpy()", "__dlpack__": "DLPack"}
_REAL = (torch.Tensor, torch.nn.Parameter)


@contextmanager
def refused() -> Iterator[None]:
    """A context in which tensors without memory raise PlanError instead of an error about torch's
    internals."""
    owner: Any = torch.Tensor
    originals = {name: getattr(owner, name) for name in _READERS}
    for name, original in originals.items():
        setattr(owner, name, _refusing(original, _READERS[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


def _refusing(original: Callable[..., Any], called: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self) in _REAL:
            return original(self, *args, **kwargs)
        raise PlanError(
            f"{called} asks for the values of a tensor of shape {tuple(self.shape)}, and a plan "
            "has none: its tensors have shapes, no memory. Do it with torch's operators, or leave "
            "it out where the job is planned (docs/plan.md, Values)"
        )

    return wrapped
