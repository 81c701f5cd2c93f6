"""Lets a fine-tune with the CUDA build rest between its epochs.

The weights are paused and resumed at their addresses. Then the engine moves them to the host and
back. Without glake's memory nothing of this happens.
"""

import contextlib
import os
from typing import Any

import torch

IN_GLAKE = torch.cuda.is_available() and os.environ.get("GLAKE_ALLOCATOR") == "1"


def weights() -> Any:
    """A region for what is allocated inside."""
    if not IN_GLAKE:
        return contextlib.nullcontext()
    import glake

    return glake.region("weights")


def on_gpu(model: torch.nn.Module) -> torch.nn.Module:
    """Moves the model to the GPU, if there is one, with its weights in the region."""
    with weights():
        return model.to("cuda") if torch.cuda.is_available() else model


def rest(model: torch.nn.Module) -> None:
    if not IN_GLAKE:
        return
    import glake
    from glake import transfer

    places = [each.data_ptr() for each in model.parameters()]
    size = sum(each.nbytes for each in model.parameters())
    held = torch.cuda.memory_reserved()
    given = glake.pause("weights")
    assert given >= size and torch.cuda.memory_reserved() == held - given, (given, size, held)
    glake.resume("weights", verify=True)
    assert places == [each.data_ptr() for each in model.parameters()]
    allocated, pool = torch.cuda.memory_allocated(), transfer.Offloader("256MiB")
    pool.offload(model).wait()
    assert torch.cuda.memory_allocated() <= allocated - size and pool.used >= size
    with weights():
        pool.prefetch(model).wait()
    assert all(each.is_cuda for each in model.parameters())


def figures(model: torch.nn.Module) -> dict[str, Any]:
    """Figures of memory at the end of a job, from PyTorch's calls and from glake's."""
    weights = sum(each.nbytes for each in model.parameters())
    if not torch.cuda.is_available():
        if os.environ.get("GLAKE_ALLOCATOR") != "1":
            return {}
        import glake

        return {"weights": weights, "peak": glake.stats()["allocated_bytes.all.peak"]}
    torch.cuda.synchronize()
    told: dict[str, Any] = {"weights": weights, "allocated": torch.cuda.max_memory_allocated()}
    if IN_GLAKE:
        import glake

        of_torch, of_glake = torch.cuda.memory_stats(), glake.stats()
        kinds = ("current", "peak", "allocated", "freed")
        names = [
            f"{what}.all.{kind}"
            for what in ("allocated_bytes", "reserved_bytes", "allocation", "requested_bytes")
            for kind in kinds
        ]
        told["of_torch"] = {name: of_torch[name] for name in names}
        told["of_glake"] = {name: of_glake[name] for name in names}
        told["pinned"] = of_glake["glake.host.allocated_bytes.peak"]
        told["copied"] = of_glake["glake.transfer.bytes"] + of_glake["glake.transfer.plain_bytes"]
    return told
