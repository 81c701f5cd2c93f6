"""A key-value cache in virtual memory: sequences grow in place, and take memory as they grow.

Each sequence's keys and values are strided tensors at addresses that never change. Attention
kernels that take strides read them as they are, without block tables. docs/virtual.md explains it.
Every function raises the errors of glake.errors.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from glake.allocator.kv_layout import Layout
from glake.allocator.virtual import PAGE, VirtualBuffer
from glake.arguments import count, word
from glake.errors import GlakeError, InvalidArgument, InvalidPointer, OutOfMemory, WrongType
from glake.transfer import completion_watcher

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from glake.allocator.kv_layout import Region
    from glake.allocator.kv_offload import Offloaded
    from glake.transfer.handle import Transfer
    from glake.typing import Device, Stream

_LAYOUTS = ("tokens", "layers")
_SETTLING_S = 0.001
Span = tuple[int, int]
"""Offsets of pages in the buffer: of the first one, and of the end."""


class Arriving(NamedTuple):
    """A load that may still go on."""

    source: Offloaded
    copy: Transfer
    length: int  # tokens of the sequence when it began


class _Place:
    """What is known of a sequence."""

    def __init__(self) -> None:
        self.length = 0  # tokens
        self.shared = 0  # first tokens, whose whole pages other sequences may have too
        self.tensors: dict[int, tuple[int, torch.Tensor]] = {}  # of regions: pages, all elements
        self.offloaded: Offloaded | None = None
        self.away: list[Span] = []  # the pages that it gave up when it was offloaded
        self.arriving: Arriving | None = None

    def settle(self, wait: bool = False) -> None:
        """Lets go of the host memory of a load that is over. If it failed, the sequence is
        offloaded again, and keeps its pages."""
        if self.arriving is not None and (wait or self.arriving.copy.done()):
            arriving, self.arriving = self.arriving, None
            try:
                arriving.copy.wait()
            except GlakeError:
                self.offloaded, self.away = arriving.source, []
            except BaseException:
                self.arriving = arriving
                raise


class KVCache:
    """Keys and values of up to `sequences` sequences on one GPU, of up to `tokens` tokens each.

    A sequence has addresses for all its tokens, and memory for those that it has. Growing makes
    driver calls only when a page of 2 MiB is full and no page of an ended sequence is free. What
    ended sequences leave serves every other tensor on the GPU, without a driver call. Sequences
    with a common beginning share its pages (fork()).

    The tensors that keys() and values() return cover all places. Only the tokens that a sequence
    has may be read or written; view() has them alone. The cache orders its work by one stream. Work
    of other streams on a sequence must be ordered before cut(), remove(), fork() and offload() of
    it, and before it grows after a cut().

    Threads may call any method at any time. The cache ends with free() or a `with` block, or when
    nothing holds it or a tensor of it.

    Attributes:
        buffer: the VirtualBuffer that it lies in.
        sequences: how many there can be at a time.
        tokens: how many each can have.

    Args:
        layers: attention layers.
        heads: key-value heads of a layer (on this GPU).
        head_dim: elements of a key.
        dtype: of the elements.
        tokens: the most that a sequence may have. Addresses cost no memory.
        sequences: the most at a time.
        layout: what lies side by side: "tokens": all layers of a token, so that a sequence's
            last page is the only one that is partly used; "layers": all tokens of a layer's
            keys and values, so that a kernel reads neighbouring bytes, but each layer has a
            last page of its own for keys and for values.
        value_dim: elements of a value; None: as of a key; 0: there are no values, as where
            multi-head latent attention keeps one vector a token.
        device: 0, "cuda:0" or a torch.device.
        stream: the stream of the work on the cache: a torch or CuPy stream, or a handle; 0: the
            legacy default stream.

    Raises:
        InvalidArgument: a number is below 1 (`value_dim`: below 0), or there is no such layout.
        WrongType: an argument of another type.
        GlakeError: as reserve(), or there is no PyTorch that can use the device.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype,
        tokens: int,
        sequences: int = 1,
        *,
        layout: Literal["tokens", "layers"] = "tokens",
        value_dim: int | None = None,
        device: Device = 0,
        stream: Stream = 0,
    ) -> None:
        """Reserves the addresses. Takes no memory."""
        given = {"layers": layers, "heads": heads, "head_dim": head_dim}
        given |= {"tokens": tokens, "sequences": sequences}
        least = dict.fromkeys(given, 1)
        given["value_dim"], least["value_dim"] = head_dim if value_dim is None else value_dim, 0
        for name, value in given.items():
            given[name] = count(f"{name} of a KVCache", value)
            if given[name] < least[name]:
                raise InvalidArgument(f"{name} {value} of a KVCache: {least[name]} or more")
        if not isinstance(dtype, importlib.import_module("torch").dtype):
            raise WrongType(f"the dtype of a KVCache is a torch.dtype, not {dtype!r}")
        by = word("layout", layout, _LAYOUTS)
        self.layers, self.heads, self.tokens = given["layers"], given["heads"], given["tokens"]
        self.head_dim, self.value_dim = given["head_dim"], given["value_dim"]
        self.sequences, self.dtype = given["sequences"], dtype
        widths = (self.head_dim, self.value_dim)
        self._layout = Layout(self.layers, self.heads, widths, dtype.itemsize, self.tokens, by)
        # One more page, in which a page is copied before it changes hands.
        self._spare = self.sequences * self._layout.place
        self.buffer = VirtualBuffer(self._spare + PAGE, device, stream)
        self._lock = threading.RLock()
        self._places: dict[int, _Place] = {}
        # Pages beyond the tokens of a place that a copy kept from being unbacked.
        self._stuck: dict[int, list[Span]] = {}
        self._free = list(range(self.sequences - 1, -1, -1))  # the last one ended is used first
        self._all: torch.Tensor | None = None  # the elements of all places

    def keys(self, layer: int) -> torch.Tensor:
        """All keys of a layer, as [sequences, tokens, heads, head_dim] (strided).

        Args:
            layer: its number, from 0.

        Raises:
            InvalidArgument: there is no such layer.
        """
        return self._of_layer(layer, 0)

    def values(self, layer: int) -> torch.Tensor:
        """All values of a layer, as [sequences, tokens, heads, head_dim] (strided).

        Args:
            layer: its number, from 0.

        Raises:
            InvalidArgument: there is no such layer.
        """
        return self._of_layer(layer, 1)

    def view(self, sequence: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a sequence's own tokens, each as [tokens, heads, head_dim] (strided).

        Their storage is the pages that the sequence has. So, until it is cut, they may be copied,
        saved and compiled as any tensor, which tensors of keys() and values() may not: their
        storage has addresses without memory.

        Args:
            sequence: its number.
            layer: its number, from 0.

        Raises:
            InvalidArgument: no such sequence or layer, or it is offloaded.
        """
        with self._lock:
            place, index = self._resident(sequence), self._layer(layer)
            keys, values = (self._of_sequence(sequence, place, index, which) for which in (0, 1))
            return keys, values

    def add(self, tokens: int = 0) -> int:
        """Begins a sequence, with memory for `tokens` tokens, whose contents are undefined.

        Args:
            tokens: 0 or more.

        Returns:
            Its number: the index in the first dimension of keys() and values(). It is used again
            after remove().

        Raises:
            OutOfMemory: there is no memory, or no place. Nothing has begun then.
            InvalidArgument: a negative number, or more than `tokens` of the cache.
            InvalidPointer: the cache was freed, or copies still use pages of every free place.
        """
        with self._lock:
            wanted = self._length(tokens)
            sequence = self._begin()
            try:
                self._grow(sequence, wanted)
            except BaseException:
                self._end(sequence)
                raise
            return sequence

    def grow(self, sequence: int, tokens: int) -> None:
        """Gives a sequence memory for `tokens` tokens in all. Those it has stay as they are.

        Tokens that it has already, or more, do nothing. Call it before the kernels that write the
        new tokens. It is a few integer operations unless a page is full.

        Args:
            sequence: its number.
            tokens: how many it has then, at least.

        Raises:
            OutOfMemory: there is no room. The sequence stays as it was.
            InvalidArgument: no such sequence, it is offloaded, or more tokens than the cache
                allows; or a page would have to be mapped anew while a stream is being captured.
            InvalidPointer: a copy in no stream's order still uses pages that cut() could not give
                up. The sequence stays as it was.
        """
        with self._lock:
            self._resident(sequence)
            self._grow(sequence, self._length(tokens))

    def cut(self, sequence: int, tokens: int) -> None:
        """Takes tokens off the end of a sequence, so that `tokens` are left. Whole pages are free.

        Args:
            sequence: its number.
            tokens: how many are left.

        Raises:
            InvalidArgument: no such sequence, it is offloaded, or it has fewer tokens.
            InvalidPointer: a copy in no stream's order uses some of the pages. The tokens are gone
                all the same, and these pages stay until the place grows again.
        """
        with self._lock:
            left = self._length(tokens)
            arriving = self._resident(sequence).arriving
            place = self._resident(sequence, arriving is not None and left < arriving.length)
            if left > place.length:
                raise InvalidArgument(
                    f"sequence {sequence} has {place.length} tokens: cut() cannot leave {left}"
                )
            had, place.length = place.length, left
            place.tensors.clear()
            self._give_up(sequence, self._spans(sequence, left, had))

    def remove(self, sequence: int) -> None:
        """Ends a sequence. Its memory serves others, after the work that the stream has by now.

        Args:
            sequence: its number.

        Raises:
            InvalidArgument: no such sequence.
            InvalidPointer: as of cut(). The sequence has ended all the same.
        """
        with self._lock:
            spans = self._spans(sequence, 0, self._place(sequence).length)
            self._end(sequence)
            self._give_up(sequence, spans)

    def fork(self, sequence: int, tokens: int | None = None) -> int:
        """Begins a sequence with the first tokens of another one, whose whole pages both share.

        What lies in the last page, which is not whole, is copied, in the order of the cache's
        stream. Either sequence may grow and be cut afterwards, and the new tokens are its own. But
        who writes tokens again that both have writes those of the other, too.

        Args:
            sequence: the other one.
            tokens: how many of its tokens; None: all.

        Returns:
            The new sequence's number.

        Raises:
            OutOfMemory: there is no memory for the last page, or no place. Nothing has begun then.
            InvalidArgument: no such sequence, it is offloaded, or it has fewer tokens; or a page
                would have to be copied while a stream is being captured.
            InvalidPointer: as of add().
        """
        with self._lock:
            source = self._resident(sequence, wait=True)
            length = source.length if tokens is None else self._length(tokens)
            if length > source.length:
                raise InvalidArgument(
                    f"sequence {sequence} has {source.length} tokens, not {length} to share"
                )
            fork = self._begin()
            try:
                self._share(sequence, fork, length)
            except BaseException:
                self._end(fork)
                self._give_up(fork, self._spans(fork, 0, length))
                raise
            place = self._places[fork]
            place.length = place.shared = length
            source.shared = max(source.shared, length)
            return fork

    def offload(self, sequence: int) -> Transfer:
        """Moves a sequence's tokens to pinned host memory. Its pages serve others at once.

        The copy goes over every path that glake.transfer finds, after the work that the cache's
        stream has by now, and what gets the pages later is ordered after the copy. Pages that other
        sequences share stay where they are. A sequence that is offloaded already stays so.

        Where PyTorch is built for the CPU, no stream orders its work, so the copy is waited for.

        Args:
            sequence: its number.

        Returns:
            The copy's handle. Nobody has to wait for it.

        Raises:
            OutOfMemory: there is no host memory for it. Nothing has changed.
            InvalidArgument: no such sequence, or a stream is being captured.
            InvalidPointer: as of cut(). The tokens are offloaded all the same.
            CopyFailed: the copy failed (by the handle's wait(), and by load()). The tokens are
                lost: remove() the sequence.
        """
        from glake.allocator.kv_offload import Offloaded

        with self._lock:
            place = self._place(sequence)
            place.settle(wait=True)
            if place.offloaded is not None:
                return place.offloaded.transfer
            self._refuse_capture(f"sequence {sequence} cannot be offloaded")
            spans = self._own_spans(sequence, place)
            # Of the last page, only what the tokens fill.
            ends = [self._end_of(sequence, region, place.length) for region in self._regions()]
            pieces = [
                (self.buffer.ptr + begin, min(end, used) - begin)
                for (begin, end), used in zip(spans, ends, strict=True)
                if end > begin
            ]
            offloaded = Offloaded(pieces, self.buffer.device, self.buffer.stream)
            self._waited(offloaded.transfer)
            place.offloaded, place.away = offloaded, spans
            place.tensors.clear()
            self._unback(spans)
            return offloaded.transfer

    def load(self, sequence: int) -> Transfer:
        """Brings an offloaded sequence back to its addresses. One that is there already stays.

        Work that the cache's stream gets after the call finds the tokens. If the copy to the host
        is not done yet, the call waits for it. The host memory is kept until the tokens have
        arrived and the sequence is used again. Until they have, fork(), offload(), and cut() into
        these tokens, wait for the copy.

        Args:
            sequence: its number.

        Returns:
            The copy's handle. Nobody has to wait for it.

        Raises:
            OutOfMemory: there is no room. The sequence stays offloaded.
            InvalidArgument: no such sequence, or a stream is being captured.
            CopyFailed: the copy to the host failed, so that the tokens are lost: remove() the
                sequence. Of this copy, the handle's wait() raises it. The tokens are still in host
                memory then, and the sequence is offloaded: load() it again.
        """
        from glake.allocator.kv_offload import nothing

        with self._lock:
            place = self._place(sequence)
            if place.offloaded is None:
                return nothing()
            self._refuse_capture(f"sequence {sequence} cannot be loaded")
            self._back(place.away)
            transfer = None
            try:
                transfer = place.offloaded.load(self.buffer.stream)
                self._waited(transfer)
            except BaseException as error:
                self._end_copy(transfer or getattr(error, "begun", None))
                with contextlib.suppress(InvalidPointer):  # some of it may still go on
                    self._unback(place.away)
                raise
            place.arriving = Arriving(place.offloaded, transfer, place.length)
            place.offloaded = None
            place.settle()
            return transfer

    def free(self) -> None:
        """Ends the cache and gives its addresses back, once the device's work is done.

        Raises:
            InvalidPointer: tensors of it are alive, or a copy in no stream's order goes on.
            InvalidArgument: a stream is being captured.
            DriverError: the driver refused. The cache stays.
        """
        with self._lock:
            self._drop_tensors()
            self.buffer.free()
            self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._lock:
            self._drop_tensors()
            self.buffer.__exit__(kind, error, trace)
            if self.buffer._ptr is None:
                self._forget()

    def _forget(self) -> None:
        """Forgets all sequences, also those in host memory."""
        self._places.clear()
        self._free.clear()
        self._stuck.clear()

    def _drop_tensors(self) -> None:
        self._all = None
        for place in self._places.values():
            place.tensors.clear()

    def length(self, sequence: int) -> int:
        """How many tokens a sequence has, on the GPU or offloaded.

        Args:
            sequence: its number.

        Raises:
            InvalidArgument: no such sequence.
        """
        with self._lock:
            return self._place(sequence).length

    @property
    def backed(self) -> int:
        """Bytes of the pages that sequences have, shared ones once for each."""
        return self.buffer.backed

    @property
    def shared(self) -> int:
        """Bytes of the pages that several sequences have, once for each."""
        return self.buffer.shared

    @property
    def offloaded(self) -> int:
        """Bytes of tokens in host memory."""
        with self._lock:
            away = [place.offloaded for place in self._places.values()]
            return sum(each.nbytes for each in away if each is not None)

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._places)

    def __repr__(self) -> str:
        return (
            f"<glake.KVCache of {len(self)} of {self.sequences} sequences, up to {self.tokens} "
            f"tokens in {self.layers} layers, on cuda:{self.buffer.device}>"
        )

    def _of_sequence(self, sequence: int, place: _Place, layer: int, which: int) -> torch.Tensor:
        """A sequence's own keys (`which` 0) or values (1) of a layer, over its backed pages."""
        part = self._layout.part(layer, which)
        pages = self._layout.regions[part.region].pages(place.length)
        known = place.tensors.get(part.region)
        if known is None or known[0] != pages:
            elements = pages * PAGE // self.dtype.itemsize
            at = self._at(sequence, self._layout.regions[part.region])
            known = pages, self.buffer.tensor(self.dtype, [elements], at)
            place.tensors[part.region] = known
        row = self._layout.regions[part.region].row // self.dtype.itemsize
        shape = (place.length, self.heads, part.width)
        # Without elements any offset is right, and there may be no page.
        offset = part.offset if place.length else 0
        return known[1].as_strided(shape, (row, part.width, 1), offset)

    def _of_layer(self, layer: int, which: int) -> torch.Tensor:
        part, item = self._layout.part(self._layer(layer), which), self.dtype.itemsize
        region = self._layout.regions[part.region]
        shape = (self.sequences, self.tokens, self.heads, part.width)
        strides = (self._layout.place // item, region.row // item, part.width, 1)
        with self._lock:
            if self._all is None:
                self._all = self.buffer.tensor(self.dtype, [self._spare // item])
            return self._all.as_strided(shape, strides, region.offset // item + part.offset)

    def _layer(self, layer: int) -> int:
        index = count("a layer", layer)
        if not 0 <= index < self.layers:
            raise InvalidArgument(
                f"layer {layer} of a cache that has layers 0 to {self.layers - 1}"
            )
        return index

    def _length(self, tokens: int) -> int:
        wanted = count("a sequence's tokens", tokens)
        if not 0 <= wanted <= self.tokens:
            raise InvalidArgument(
                f"{tokens} tokens: a sequence of this cache has from 0 to {self.tokens}"
            )
        return wanted

    def _place(self, sequence: int) -> _Place:
        place = self._places.get(count("a sequence", sequence))
        if place is None:
            raise InvalidArgument(f"no sequence {sequence} has begun (add(), fork()), or it ended")
        place.settle()
        return place

    def _resident(self, sequence: int, wait: bool = False) -> _Place:
        """`wait`: until a load of it is over, because what follows could not be done again."""
        place = self._place(sequence)
        place.settle(wait)
        if place.offloaded is not None:
            raise InvalidArgument(f"sequence {sequence} is offloaded: load() it first")
        return place

    def _begin(self) -> int:
        _ = self.buffer.ptr  # raises if the cache was freed
        used: InvalidPointer | None = None
        for sequence in reversed(self._free):
            try:
                self._settle(sequence)
            except InvalidPointer as error:
                used = used or error
                continue
            self._free.remove(sequence)
            self._places[sequence] = _Place()
            return sequence
        if used is not None:
            raise used
        raise OutOfMemory(
            f"all {self.sequences} places for sequences are in use: remove() one, or make the "
            "cache with more (places without tokens take no memory)"
        )

    def _end(self, sequence: int) -> None:
        del self._places[sequence]
        self._free.append(sequence)

    def _regions(self) -> list[Region]:
        """Those that have bytes."""
        return [each for each in self._layout.regions if each.row]

    def _at(self, sequence: int, region: Region, page: int = 0) -> int:
        """Offset of a region's page in the buffer."""
        return sequence * self._layout.place + region.offset + page * PAGE

    def _end_of(self, sequence: int, region: Region, tokens: int) -> int:
        """Offset of the end of the first tokens of a region."""
        return self._at(sequence, region) + tokens * region.row

    def _spans(self, sequence: int, had: int, wanted: int) -> list[Span]:
        """Of each region, the pages that `wanted` tokens have and `had` tokens have not."""
        return [
            (
                self._at(sequence, each, each.pages(had)),
                self._at(sequence, each, each.pages(wanted)),
            )
            for each in self._regions()
        ]

    def _own_spans(self, sequence: int, place: _Place) -> list[Span]:
        """Of each region, the pages that no other sequence has. Those that others have come first,
        because they share a beginning."""
        spans = []
        for each in self._regions():
            begin, end = (self._at(sequence, each, page) for page in (0, each.pages(place.length)))
            likely = min(end, self._at(sequence, each, each.whole(place.shared)))
            spans.append((begin + self.buffer.figures(begin, likely)[1], end))
        return spans

    def _grow(self, sequence: int, tokens: int) -> None:
        """Backs the pages of the first `tokens`."""
        place = self._places[sequence]
        if tokens <= place.length:
            return
        self._settle(sequence)
        if place.length < place.shared:
            self._own_last_pages(sequence, place)
        self._back(self._spans(sequence, place.length, tokens))
        place.length = tokens

    def _back(self, spans: list[Span]) -> None:
        """Backs all pages, or none of them."""
        for number, (begin, end) in enumerate(spans):
            try:
                self.buffer.back(begin, end)
            except BaseException:
                self._unback(spans[:number])
                raise

    def _give_up(self, sequence: int, spans: list[Span]) -> None:
        """Unbacks pages beyond the tokens of a place. It remembers them if some are refused."""
        try:
            self._unback(spans)
        except BaseException:
            self._stuck.setdefault(sequence, []).extend(spans)
            raise

    def _settle(self, sequence: int) -> None:
        """Gives up what an earlier call could not. Other sequences may share these pages, so the
        place must not grow into them."""
        if spans := self._stuck.pop(sequence, None):
            self._give_up(sequence, spans)

    def _unback(self, spans: list[Span]) -> None:
        """Unbacks all pages, also if some are refused."""
        with contextlib.ExitStack() as all_:
            for begin, end in spans:
                all_.callback(self.buffer.unback, begin, end)

    def _share(self, sequence: int, fork: int, tokens: int) -> None:
        """Gives a fork the pages of the first tokens: the whole ones shared, others copied."""
        for region in self._regions():
            whole = region.whole(tokens)
            if whole:
                to, source = self._at(fork, region), self._at(sequence, region)
                self.buffer.alias(to, self.buffer, source, whole * PAGE)
        parted = [each for each in self._regions() if each.pages(tokens) > each.whole(tokens)]
        for region in parted:
            at = self._at(fork, region, region.whole(tokens))
            self.buffer.back(at, at + PAGE)
        if parted:  # back() has just named the stream, so glake knows whether it is captured
            self._refuse_capture(
                f"sequence {sequence} cannot be forked within a page, which is copied,"
            )
        for region in parted:
            to, source = (self._at(one, region, region.whole(tokens)) for one in (fork, sequence))
            self._copy(to, source, self._end_of(fork, region, tokens) - to)

    def _own_last_pages(self, sequence: int, place: _Place) -> None:
        """Gives a sequence copies of its last pages, which it shares and is about to write into.
        This happens after a cut() into a shared beginning."""
        for region in self._regions():
            at = self._at(sequence, region, region.whole(place.length))
            if self.buffer.figures(at, at + PAGE)[1] == 0:
                continue  # the others have ended
            self._refuse_capture(
                f"sequence {sequence} was cut back into tokens that it shares, and cannot grow"
            )
            self.buffer.back(self._spare)
            try:
                self._copy(self._spare, at, self._end_of(sequence, region, place.length) - at)
                self.buffer.alias(at, self.buffer, self._spare, PAGE)
            finally:
                self.buffer.unback(self._spare)
        place.shared = place.length

    def _refuse_capture(self, what: str) -> None:
        if self.buffer._capturing():
            raise InvalidArgument(
                f"{what} while a stream is being captured: do it before the capture"
            )

    @staticmethod
    def _end_copy(transfer: Transfer | None) -> None:
        """Waits until a copy writes no more, before others get the pages that it writes."""
        if transfer is None:
            return
        with contextlib.suppress(GlakeError):
            transfer.wait()
        # Driver copies that were given up for others may still go on.
        while completion_watcher.unsettled(transfer._ids):
            time.sleep(_SETTLING_S)

    @staticmethod
    def _waited(transfer: Transfer) -> None:
        """Waits for a copy where no stream orders PyTorch's work after it."""
        if importlib.import_module("torch").version.cuda is None:
            transfer.wait()
            KVCache._end_copy(transfer)

    def _copy(self, to: int, source: int, nbytes: int) -> None:
        """Copies bytes of the buffer, in the order of its stream."""
        torch: Any = importlib.import_module("torch")
        there, here = (self.buffer.tensor(torch.uint8, [nbytes], at) for at in (to, source))
        if there.device.type != "cuda":
            there.copy_(here)
            return
        own = self.buffer.stream
        stream = (
            torch.cuda.ExternalStream(own, there.device)
            if own
            else torch.cuda.default_stream(there.device)
        )
        with torch.cuda.stream(stream):
            there.copy_(here)
