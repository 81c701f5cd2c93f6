"""Makes each communication buffer of FSDP2 one driver allocation, which NCCL can register.

NCCL registers one driver allocation, and stitched memory consists of many. While such a buffer is
free, nothing else can use its memory. So this hook is for jobs that register buffers (NCCL's
zero-copy and NVLS collectives). It is armed only if the user names it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

from glake.errors import GlakeError
from glake.integrations import figures
from glake.integrations.replacing import replace, single_allocations

PACKAGE = "torch.distributed.fsdp"
VERSIONS = ("2.11", "2.15")

_COLLECTIVES = "torch.distributed.fsdp._fully_shard._fsdp_collectives"


def version() -> str:
    """The version of PyTorch, without its build."""
    torch: Any = importlib.import_module("torch")
    return str(torch.__version__).partition("+")[0]


def install() -> None:
    """From now on makes every all-gather and reduce-scatter buffer one driver allocation, for every
    sharded module."""
    if _undo:
        return
    kind = getattr(importlib.import_module(_COLLECTIVES), "DefaultAllocMixin", None)
    before = getattr(kind, "allocate", None)
    if before is None:
        raise GlakeError(f"integration fsdp2: {_COLLECTIVES} has no DefaultAllocMixin.allocate")

    @functools.wraps(before)
    def in_one_piece(*args: Any, **kwargs: Any) -> Any:
        with single_allocations():
            made = before(*args, **kwargs)
        figures.add("fsdp2", "contiguous_requests", 1)
        return made

    with contextlib.ExitStack() as made:
        replace(made, kind, "allocate", in_one_piece)
        _undo.append(made.pop_all())


def uninstall() -> None:
    """Restores PyTorch's own buffers."""
    while _undo:
        _undo.pop().close()


_undo: list[contextlib.ExitStack] = []
