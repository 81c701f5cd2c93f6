"""A flat holds the parameters of a unit that have the same dtype and trainability, end to end.

Its elements are divided into equal shares, one for each rank. While the unit computes, `full` holds
all elements, gathered in place. The unit's parameters are views of `full`, so nothing is copied in
or out. At other times `full` has no memory. The optimizer works on the pieces of parameters in this
rank's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from glake.trainer.fsdp.collectives import Collectives, Work

if TYPE_CHECKING:
    from glake.trainer.fsdp.offload import Host

_ALIGN = 8  # elements: 16 bytes of the narrowest dtype, as vector loads and NCCL need
_ROUND = 1024  # elements: a large flat is a multiple, so shares of 2 to 128 ranks are aligned


@dataclass(eq=False)
class Slot:
    """A parameter of the model, and its place in its flat."""

    name: str
    whole: nn.Parameter  # the model's parameter; in a flat it is a view of `full`
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)  # modules, and names there
    start: int = 0
    offset: int = 0  # of the piece in the share
    piece: nn.Parameter = field(init=False)  # this rank's part, 1-D: what the optimizer updates

    @property
    def shape(self) -> torch.Size:
        return self.whole.shape

    @property
    def end(self) -> int:
        return self.start + self.whole.numel()

    def install(self, parameter: nn.Parameter, whole: bool = True) -> None:
        """Gives the parameter to the modules."""
        if whole:
            self.whole = parameter
        for module, attribute in self.owners:
            module._parameters[attribute] = parameter


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


class Flat:
    """Parameters of the same dtype and trainability, shared out among the ranks."""

    def __init__(
        self,
        name: str,
        slots: list[Slot],
        ranks: Collectives,
        compute: torch.dtype | None,
        host: Host | None = None,
    ) -> None:
        """Keeps this rank's share of the parameters' values, and gives the modules its pieces.
        `compute` is the dtype in which they are gathered. `host` keeps the share, if given."""
        self.name, self.slots = name, slots
        self.dtype, self.trainable = slots[0].whole.dtype, slots[0].whole.requires_grad
        self.compute_dtype = compute if compute and self.dtype.is_floating_point else self.dtype
        end = 0
        for slot in slots:
            slot.start = end
            end = _rounded(slot.end, _ALIGN)
        self.length = _rounded(end, _ROUND if end >= 128 * _ROUND else _ALIGN)
        self.chunk = -(-self.length // ranks.ranks)  # as DTensor's Shard(0) deals out `length`
        self.first = ranks.rank * self.chunk  # where in the flat this share begins
        self.partial: torch.Tensor | None = None  # gradients of backward passes not yet reduced
        self._used: set[int] = set()  # slots that had a gradient in those passes or in this one
        self._ranks, self._host = ranks, host
        self._reducing: tuple[Work | None, torch.Tensor, torch.Tensor] | None = None
        self._arriving: list[tuple[Any, torch.Tensor]] = []  # gradients on their way to the host
        self._work: Work | None = None
        self._source: torch.Tensor | None = None  # the gather under way reads this
        self._gathered = False
        self._flags: torch.Tensor | None = None
        self._share_out()

    def _share_out(self) -> None:
        ranks = self._ranks
        # With one rank there is nothing to gather: the parameters are views of the share itself.
        same = self.compute_dtype == self.dtype and self._host is None
        self._alone = ranks.ranks == 1 and same
        here = torch.zeros(self.chunk, dtype=self.dtype, device=ranks.device)
        counts = [self._copy_overlap(slot, here) for slot in self.slots]
        self.shard = here
        if self._host is not None:
            self.shard = self._host.empty(here.shape, here.dtype)
            self._host.copy(self.shard, here).wait()
        self.full = here
        if not self._alone:
            size = self.chunk * ranks.ranks
            self.full = torch.empty(size, dtype=self.compute_dtype, device=ranks.device)
        for slot, count in zip(self.slots, counts, strict=True):
            # `.data` is used, because autograd must not count gathering into `full` as a change of
            # tensors that it saved.
            part = self.shard[slot.offset : slot.offset + count].data
            slot.piece = nn.Parameter(part, self.trainable)
            whole = self.full[slot.start : slot.end].view(slot.shape).data
            slot.whole = nn.Parameter(whole, self.trainable)
        self._bytes = self.full.untyped_storage().nbytes()
        self._free()

    def _copy_overlap(self, slot: Slot, share: torch.Tensor) -> int:
        """Copies the part of a parameter that is in this share. Returns the number of elements."""
        low, high = max(slot.start, self.first), min(slot.end, self.first + self.chunk)
        slot.offset, count = low - self.first, max(0, high - low)
        if count:
            part = slot.whole.detach().reshape(-1)[low - slot.start : high - slot.start]
            share[slot.offset : slot.offset + count] = part
        return count

    @property
    def valid(self) -> int:
        """The elements of this share that are in the flat. The rest of the chunk is padding."""
        return max(0, min(self.chunk, self.length - self.first))

    # Between passes

    def gather(self) -> None:
        """Starts to gather all shares, unless a gather was started already."""
        if self._alone or self._gathered or self._work is not None:
            return
        self.full.untyped_storage().resize_(self._bytes)
        with self._ranks.aside(), torch.no_grad():
            self._source = self._on_device(self.shard).to(self.compute_dtype)
            if self._ranks.ranks > 1:
                self._work = self._ranks.gather(self.full, self._source)
        if self._work is None:
            self._ranks.join(self._ranks.mark())
            self.full.copy_(self._source)

    def _on_device(self, share: torch.Tensor) -> torch.Tensor:
        if self._host is None:
            return share
        made = torch.empty_like(share, device=self._ranks.device, pin_memory=False)
        self._host.copy(made, share)
        return made

    def wait(self) -> None:
        """Waits for the gather. From now on the unit's modules have their whole parameters."""
        if self._gathered:
            return
        self.gather()
        if self._work is not None:
            self._work.wait()
        self._work = self._source = None
        self._gathered = True
        for slot in self.slots:
            slot.install(slot.whole)

    def release(self) -> None:
        """Frees the whole parameters. From now on the modules have the pieces."""
        if self._work is not None:
            self._work.wait()
            self._work = self._source = None
        elif not self._gathered:
            return
        self._free()

    def _free(self) -> None:
        self._gathered = False
        if not self._alone:
            self.full.untyped_storage().resize_(0)
        for slot in self.slots:
            slot.install(slot.piece, whole=False)

    def whole_values(self) -> torch.Tensor:
        """The shares of all ranks end to end, in the parameters' dtype."""
        share = self._on_device(self.shard)
        if self._ranks.ranks == 1:
            return share.clone()
        whole = torch.empty(
            self.chunk * self._ranks.ranks, dtype=share.dtype, device=self._ranks.device
        )
        self._ranks.gather(whole, share).wait()
        return whole

    # Gradients

    def collect(self, dtype: torch.dtype) -> torch.Tensor:
        """The gradients of the whole parameters, end to end and summed so far. The parameters have
        none afterwards.

        Flags follow each rank's chunk, one for every slot. A flag is 1 if this rank has a gradient
        for the slot. So the sums of flags tell all ranks which parameters no rank used, without
        another collective.
        """
        device, size = self._ranks.device, self.chunk * self._ranks.ranks

        def zeros(count: int) -> torch.Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        found: list[torch.Tensor] = []
        used: set[int] = set()
        ends = [*(slot.start for slot in self.slots[1:]), size]
        for number, (slot, end) in enumerate(zip(self.slots, ends, strict=True)):
            given, slot.whole.grad = slot.whole.grad, None
            if given is not None:
                found.append(given.reshape(-1))
                used.add(number)
            if (gap := end - (slot.start if given is None else slot.end)) > 0:
                found.append(zeros(gap))
        flags = self._flags_of(used, dtype)
        whole = torch.empty(size + len(flags) * self._ranks.ranks, dtype=dtype, device=device)
        torch.cat(list(_chunked(found, self.chunk, flags)), out=whole)
        self._used |= used
        if self.partial is not None:
            whole += self.partial
            self.partial = None
        return whole

    def _flags_of(self, used: set[int], dtype: torch.dtype) -> torch.Tensor:
        """A flag for each slot. Most passes use all slots, so the flags of such a pass are kept for
        later ones."""
        if len(used) < len(self.slots):
            row = [float(number in used) for number in range(len(self.slots))]
            return torch.tensor(row, dtype=dtype, device=self._ranks.device)
        if self._flags is None or self._flags.dtype != dtype:
            self._flags = torch.ones(len(self.slots), dtype=dtype, device=self._ranks.device)
        return self._flags

    def reduce(self, dtype: torch.dtype) -> None:
        """Starts to sum the results of collect() over all ranks. This rank keeps its share of the
        sum."""
        share = whole = self.collect(dtype)
        work: Work | None = None
        if self._ranks.ranks > 1:
            share = torch.empty_like(whole[: self.chunk + len(self.slots)])
            work = self._ranks.reduce(share, whole)
        self._reducing = work, share, whole  # `whole` must live until it has been summed

    def arrived(self) -> torch.Tensor | None:
        """The sum of reduce(), once it has arrived. None if reduce() was not called."""
        if self._reducing is None:
            return None
        (work, share, _), self._reducing = self._reducing, None
        if work is not None:
            work.wait()
        return share

    def deliver(self) -> None:
        """Gives the pieces their gradients from reduce(), or adds these to gradients that they
        have. A piece that no rank used gets no gradient, so that no optimizer steps it."""
        share = self.arrived()
        if share is None:
            return
        reduced, flags = share.split([self.chunk, len(self.slots)])
        used: Any = self._used
        if len(used) < len(self.slots):  # only then must the host read the flags, and wait for them
            used = set(flags.nonzero().flatten().tolist())
        self._used = set()
        reduced = reduced.to(self.dtype)
        if self._host is not None:
            here, reduced = reduced, self._host.empty(reduced.shape, reduced.dtype)
            self._arriving.append((self._host.copy(reduced, here), here))
        for number, slot in enumerate(self.slots):
            if number not in used or not slot.piece.numel():
                continue
            part = reduced[slot.offset : slot.offset + slot.piece.numel()]
            if slot.piece.grad is None:
                slot.piece.grad = part
            else:
                self.settle()
                slot.piece.grad += part

    def settle(self) -> None:
        """Waits until the host has all delivered gradients."""
        for copy, _ in self._arriving:
            copy.wait()
        self._arriving.clear()

    def forget(self, backward: bool) -> None:
        """Drops the gradients of a pass that failed. `backward`: the backward pass had begun to add
        to gradients of earlier passes. These are dropped as well."""
        self.arrived()
        if backward:
            self.partial = None
            self._used = set()
            self.settle()
        for slot in self.slots:
            slot.whole.grad = None
            if backward:
                slot.piece.grad = None


def _chunked(parts: list[torch.Tensor], chunk: int, flags: torch.Tensor) -> Iterator[torch.Tensor]:
    """Cuts the parts, which together make whole chunks, where a chunk ends. `flags` follow each
    chunk."""
    room = chunk
    for part in parts:
        while part.numel() >= room:
            yield part[:room]
            yield flags
            part, room = part[room:], chunk
        room -= part.numel()
        yield part
