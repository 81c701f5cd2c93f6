"""Collectives of the ranks by torch.distributed: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from glake.errors import InvalidArgument


class Work(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """On CUDA it makes the current stream wait. Otherwise it makes the caller wait."""


class _SumOfChunks:
    """The second half of a reduce-scatter by all-to-all. It adds up what every rank sent."""

    def __init__(self, work: Work, received: torch.Tensor, share: torch.Tensor) -> None:
        self._work, self._received, self._share = work, received, share

    def wait(self) -> None:
        self._work.wait()
        ranks = self._received.numel() // max(1, self._share.numel())
        torch.sum(self._received.view(ranks, -1), 0, out=self._share)


def _newest(*names: str) -> Any:
    """The first of these functions that this torch has. New names come first, because deprecated
    ones warn."""
    for name in names:
        if (found := getattr(dist, name, None)) is not None:
            return found
    raise InvalidArgument(f"torch {torch.__version__} has none of {', '.join(names)}")


class Collectives:
    """The ranks that share a model. A single rank needs no process group."""

    def __init__(self, group: Any, device: torch.device) -> None:
        """`group` is a process group. None: all ranks, or this process alone if there is no process
        group."""
        together = dist.is_available() and dist.is_initialized()
        self.group: Any = group if group is not None or not together else dist.group.WORLD
        self.ranks = dist.get_world_size(self.group) if together else 1
        self.rank = dist.get_rank(self.group) if together else 0
        self.device = device
        self._meshes: dict[str, Any] = {}
        self._gloo = together and device.type == "cpu"
        self._aside = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self.ranks > 1:
            self._gather = _newest("all_gather_single", "all_gather_into_tensor")
            self._reduce = _newest("reduce_scatter_single", "reduce_scatter_tensor")

    def mesh(self, kind: str) -> Any:
        """The ranks as a DeviceMesh of one kind of device, which DTensors need."""
        if kind not in self._meshes:
            self._meshes[kind] = DeviceMesh.from_group(self.group, kind)
        return self._meshes[kind]

    def aside(self) -> contextlib.AbstractContextManager[Any]:
        """A second CUDA stream. It waits for the work that is enqueued on the current stream so
        far."""
        if self._aside is None:
            return contextlib.nullcontext()
        self._aside.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._aside)

    def mark(self) -> Any:
        """A mark behind the work that is enqueued aside so far, for join()."""
        return None if self._aside is None else self._aside.record_event()

    def join(self, mark: Any) -> None:
        """Makes the current stream wait for the work that was enqueued aside before the mark."""
        if mark is not None:
            torch.cuda.current_stream(self.device).wait_event(mark)

    def gather(self, whole: torch.Tensor, share: torch.Tensor) -> Work:
        """Starts to fill `whole` with the shares of all ranks, in order."""
        return self._gather(whole, share, group=self.group, async_op=True)

    def reduce(self, share: torch.Tensor, whole: torch.Tensor) -> Work:
        """Starts to fill `share` with this rank's part of the sum of all ranks' `whole`."""
        if not self._gloo:
            return self._reduce(share, whole, group=self.group, async_op=True)
        # gloo's reduce-scatter takes twice the CPU time of an all-to-all and a sum.
        received = torch.empty_like(whole)
        work: Work = dist.all_to_all_single(received, whole, group=self.group, async_op=True)
        return _SumOfChunks(work, received, share)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sums every rank's `value`, in place."""
        if self.ranks > 1:
            dist.all_reduce(value, group=self.group)
        return value


def everyones(value: Any, group: Any) -> list[Any]:
    """The values of all ranks of the group, in their order. A single process needs no group."""
    if group is None:
        return [value]
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group)
    return found
