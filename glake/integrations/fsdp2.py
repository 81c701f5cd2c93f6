"""FSDP2's communication buffers as single driver allocations, which NCCL can register.

Registration covers one driver allocation, and stitched memory is many. Such buffers serve nobody
else while they are free, so that this is for jobs that register them (NCCL's zero-copy and NVLS
collectives): it is armed only where it is named.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from glake.allocator.sharing import contiguous
from glake.errors import GlakeError
from glake.integrations import figures

PACKAGE = "torch.distributed.fsdp"
VERSIONS = ("2.11", "2.15")

_COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives"


def version() -> str:
    """Of PyTorch, without its build."""
    torch: Any = importlib.import_module("torch")
    return str(torch.__version__).partition("+")[0]


def install() -> None:
    """All-gather's and reduce-scatter's buffers from now on, of every module that is sharded."""
    if _before:
        return
    kind = getattr(importlib.import_module(_COLLECTIVES), "DefaultAllocMixin", None)
    before = getattr(kind, "allocate", None)
    if before is None:
        raise GlakeError(f"integration fsdp2: {_COLLECTIVES} has no DefaultAllocMixin.allocate")

    @functools.wraps(before)
    def in_one_piece(*args: Any, **kwargs: Any) -> Any:
        with contiguous():
            made = before(*args, **kwargs)
        figures.add("fsdp2", "contiguous_requests", 1)
        return made

    kind.allocate = in_one_piece  # type: ignore[union-attr]
    _before.append((kind, before))


def uninstall() -> None:
    """PyTorch's own again."""
    while _before:
        kind, before = _before.pop()
        kind.allocate = before


_before: list[tuple[Any, Any]] = []
