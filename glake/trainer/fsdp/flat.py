"""A flat: the parameters of a unit that have one dtype and one trainability, end to end.

Its elements are dealt out in equal shares, one a rank. While the unit computes, `full` holds all of
them, gathered in place: the unit's parameters are views of it, so nothing is copied in or out. In
between `full` has no memory, and the optimizer works on the pieces of parameters in this share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from glake.trainer.fsdp.collectives import Collectives, Work

if TYPE_CHECKING:
    from glake.trainer.fsdp.offload import Host

_ALIGN = 8  # elements: 16 bytes of the narrowest dtype, which vector loads and NCCL ask for
_ROUND = 1024  # of a large flat, so that the shares of 2 to 128 ranks begin aligned


@dataclass
class Origin:
    """A parameter of the model as it was given, and the modules that know it, by which name."""

    name: str
    parameter: nn.Parameter
    owners: list[tuple[nn.Module, str]]


@dataclass(eq=False)
class Slot:
    """Where a parameter lies in its flat."""

    name: str
    shape: torch.Size
    start: int
    owners: list[tuple[nn.Module, str]]
    whole: nn.Parameter  # a view of `full`: what the module computes with
    piece: nn.Parameter  # this rank's part, 1-D, perhaps empty: what the optimizer updates
    offset: int  # of the piece in the share

    @property
    def end(self) -> int:
        return self.start + self.shape.numel()


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


class Flat:
    """Parameters of one dtype and trainability, shared out among the ranks."""

    def __init__(
        self,
        name: str,
        origins: list[Origin],
        ranks: Collectives,
        compute: torch.dtype | None,
        host: Host | None = None,
    ) -> None:
        """`compute`: the dtype in which it is gathered; `host`: keeps the share, if given."""
        first = origins[0].parameter
        self.name = name
        self.dtype = first.dtype
        self.trainable = first.requires_grad
        self.compute_dtype = compute if compute and self.dtype.is_floating_point else self.dtype
        self.starts: list[int] = []
        end = 0
        for origin in origins:
            self.starts.append(end)
            end += _rounded(origin.parameter.numel(), _ALIGN)
        self.length = _rounded(end, _ROUND if end >= 128 * _ROUND else _ALIGN)
        self.chunk = -(-self.length // ranks.ranks)  # as DTensor's Shard(0) deals out `length`
        self.slots: list[Slot] = []
        self.partial: torch.Tensor | None = None  # gradients of backward passes not yet reduced
        self._used: set[int] = set()  # slots that had a gradient in those, or in the one at hand
        self.origins = origins
        self._ranks, self._host = ranks, host
        self._reducing: tuple[Work | None, torch.Tensor, torch.Tensor] | None = None
        self._arriving: list[tuple[Any, torch.Tensor]] = []  # gradients on their way to the host
        self._work: Work | None = None
        self._source: torch.Tensor | None = None  # what the gather under way reads
        self._gathered = False
        self._marks: torch.Tensor | None = None

    @property
    def valid(self) -> int:
        """Elements of this share that lie in the flat; the rest of the chunk is padding."""
        return max(0, min(self.chunk, self.length - self.first))

    @property
    def first(self) -> int:
        """Where in the flat this share begins."""
        return self._ranks.rank * self.chunk

    # Making it

    def values(self) -> torch.Tensor:
        """The parameters' values, end to end; those on the meta device become views of it."""
        device = self._ranks.device
        flat = torch.zeros(self.chunk * self._ranks.ranks, dtype=self.dtype, device=device)
        for origin, start in zip(self.origins, self.starts, strict=True):
            given = origin.parameter
            part = flat[start : start + given.numel()].view(given.shape)
            if given.is_meta:
                made = nn.Parameter(part, requires_grad=given.requires_grad)
                _install(origin.owners, made)
            else:
                part.copy_(given.detach())
        return flat

    def share_out(self, values: torch.Tensor) -> None:
        """Keeps this rank's share of the values, and gives the modules the pieces of it."""
        ranks = self._ranks
        self.shard = values[self.first : self.first + self.chunk].clone()
        if self._host is not None:
            here = self.shard
            self.shard = self._host.empty(here.shape, here.dtype)
            self._host.copy(self.shard, here).wait()
        # With one rank there is nothing to gather: the parameters are views of the share itself.
        same = self.compute_dtype == self.dtype and self._host is None
        self._alone = ranks.ranks == 1 and same
        size = self.chunk * ranks.ranks
        self.full = (
            self.shard
            if self._alone
            else torch.empty(size, dtype=self.compute_dtype, device=ranks.device)
        )
        for origin, start in zip(self.origins, self.starts, strict=True):
            self.slots.append(self._slot(origin, start, self.first))
        self.origins = []
        self._bytes = self.full.untyped_storage().nbytes()
        self._free()

    def _slot(self, origin: Origin, start: int, begin: int) -> Slot:
        given = origin.parameter
        end = start + given.numel()
        low, high = max(start, begin), min(end, begin + self.chunk)
        part = self.shard[low - begin : max(low, high) - begin]
        # `.data`: gathering into `full` must not count as a change of what autograd has saved.
        whole = nn.Parameter(self.full[start:end].view(given.shape).data, self.trainable)
        piece: Any = nn.Parameter(part.data, self.trainable)
        piece.whole_shape = given.shape
        return Slot(origin.name, given.shape, start, origin.owners, whole, piece, low - begin)

    # Between passes

    def gather(self) -> None:
        """Starts to gather all shares, if that has not been done."""
        if self._gathered or self._work is not None:
            return
        if not self._alone:
            self.full.untyped_storage().resize_(self._bytes)
            self._start()

    def _start(self) -> None:
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
        """The unit's modules have their whole parameters from here on."""
        if self._gathered:
            return
        self.gather()
        if self._work is not None:
            self._work.wait()
        self._work = self._source = None
        self._gathered = True
        for slot in self.slots:
            _install(slot.owners, slot.whole)

    def release(self) -> None:
        """Frees the whole parameters; the modules have the pieces from here on."""
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
            _install(slot.owners, slot.piece)

    def whole_values(self, share: torch.Tensor | None = None) -> torch.Tensor:
        """All ranks' shares (or values laid out as those) end to end, in the parameters' dtype."""
        share = self._on_device(self.shard) if share is None else share
        if self._ranks.ranks == 1:
            return share.clone()
        whole = torch.empty(
            self.chunk * self._ranks.ranks, dtype=share.dtype, device=self._ranks.device
        )
        self._ranks.gather(whole, share).wait()
        return whole

    # Gradients

    def has_gradients(self) -> bool:
        """Whether a backward pass has left gradients of whole parameters."""
        return any(slot.whole.grad is not None for slot in self.slots)

    def collect(self, dtype: torch.dtype) -> torch.Tensor:
        """The gradients of the whole parameters, taken from them, end to end and summed so far.

        Each rank's chunk of them has a mark for every slot behind it, 1 where this rank has a
        gradient: sums of marks tell all ranks which parameters nobody used, with no further word.
        """
        device = self._ranks.device
        found: list[torch.Tensor] = []
        used: set[int] = set()
        at = 0
        for number, slot in enumerate(self.slots):
            if slot.start > at:
                found.append(torch.zeros(slot.start - at, dtype=dtype, device=device))
            given, slot.whole.grad = slot.whole.grad, None
            if given is None:
                found.append(torch.zeros(slot.shape.numel(), dtype=dtype, device=device))
            else:
                found.append(given.reshape(-1))
                used.add(number)
            at = slot.end
        size = self.chunk * self._ranks.ranks
        if size > at:
            found.append(torch.zeros(size - at, dtype=dtype, device=device))
        marks = self._marks_of(used, dtype)
        whole = torch.empty(size + len(marks) * self._ranks.ranks, dtype=dtype, device=device)
        torch.cat(list(_chunked(found, self.chunk, marks)), out=whole)
        self._used |= used
        if self.partial is not None:
            whole += self.partial
            self.partial = None
        return whole

    def _marks_of(self, used: set[int], dtype: torch.dtype) -> torch.Tensor:
        """One for each slot; those of a pass that used all, as most do, are kept."""
        if len(used) < len(self.slots):
            row = [float(number in used) for number in range(len(self.slots))]
            return torch.tensor(row, dtype=dtype, device=self._ranks.device)
        if self._marks is None or self._marks.dtype != dtype:
            self._marks = torch.ones(len(self.slots), dtype=dtype, device=self._ranks.device)
        return self._marks

    def reduce(self, dtype: torch.dtype) -> None:
        """Starts to sum every rank's collect(), of which this rank keeps its share."""
        share = whole = self.collect(dtype)
        work: Work | None = None
        if self._ranks.ranks > 1:
            share = torch.empty_like(whole[: self.chunk + len(self.slots)])
            work = self._ranks.reduce(share, whole)
        self._reducing = work, share, whole  # which must live until it has been summed

    def arrived(self) -> torch.Tensor | None:
        """What reduce() has summed, once it is there; None if it was not called."""
        if self._reducing is None:
            return None
        (work, share, _), self._reducing = self._reducing, None
        if work is not None:
            work.wait()
        return share

    def deliver(self) -> None:
        """Gives the pieces the gradients of reduce(), or adds to those they have; to one that no
        rank used, none, so that no optimizer steps it."""
        share = self.arrived()
        if share is None:
            return
        reduced, marks = share.split([self.chunk, len(self.slots)])
        used: Any = self._used
        if len(used) < len(self.slots):  # only then does the host wait for the ranks' word
            used = set(marks.nonzero().flatten().tolist())
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
        """The host has all gradients that were delivered."""
        for copy, _ in self._arriving:
            copy.wait()
        self._arriving.clear()

    def forget(self, backward: bool) -> None:
        """Drops the gradients of a pass that failed. `backward`: it had begun to add to those of
        passes before it, which are dropped with them."""
        self.arrived()
        if backward:
            self.partial = None
            self._used = set()
            self.settle()
        for slot in self.slots:
            slot.whole.grad = None
            if backward:
                slot.piece.grad = None


def _chunked(parts: list[torch.Tensor], chunk: int, marks: torch.Tensor) -> Iterator[torch.Tensor]:
    """The parts, which make whole chunks, cut where one ends; `marks` follow each chunk."""
    room = chunk
    for part in parts:
        while part.numel() >= room:
            yield part[:room]
            yield marks
            part, room = part[room:], chunk
        room -= part.numel()
        yield part


def _install(owners: Iterable[tuple[Any, str]], parameter: nn.Parameter) -> None:
    for module, attribute in owners:
        module._parameters[attribute] = parameter
