"""A key-value cache in virtual memory: sequences grow in place, and take memory as they grow.

Each sequence's keys and values are strided tensors at addresses that never change. Attention
kernels that take strides read them as they are, without block tables. docs/virtual.md explains it.
Every function raises the errors of glake.errors.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from glake import _C
from glake.allocator.virtual import PAGE, VirtualBuffer
from glake.arguments import count, word
from glake.errors import InvalidArgument, OutOfMemory, WrongType

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from glake.typing import Device, Stream

_LAYOUTS = ("tokens", "layers")


@dataclass(frozen=True)
class _Rows:
    """How one place for a sequence is divided: regions of rows, each row a token's.

    Attributes:
        regions: 1, or one for each layer's keys and one for its values.
        row: bytes of a row.
        stride: bytes from a region to the next one, in whole pages.
    """

    regions: int
    row: int
    stride: int

    @property
    def place(self) -> int:
        """Bytes of a place."""
        return self.regions * self.stride

    def pages(self, rows: int) -> int:
        """Pages of a region that have a byte of its first `rows`."""
        return -(-rows * self.row // PAGE)

    def whole(self, rows: int) -> int:
        """Pages of a region that its first `rows` fill."""
        return rows * self.row // PAGE


class _Place:
    """What is known of a sequence."""

    def __init__(self) -> None:
        self.length = 0  # tokens
        self.shared = 0  # leading pages of each region that other sequences may have too
        self.pages = 0  # of each region, when `regions` were made
        self.regions: dict[int, torch.Tensor] = {}  # tensors of the backed pages


class KVCache:
    """Keys and values of up to `sequences` sequences on one GPU, of up to `tokens` tokens each.

    A sequence has addresses for all its tokens, and memory for those that it has. Growing makes
    driver calls only when a page of 2 MiB is full and no page of an ended sequence is free. What
    ended sequences leave serves every other tensor on the GPU, without a driver call. Sequences
    with a common beginning share its pages (fork()).

    The tensors that keys() and values() return cover all places. Only the tokens that a sequence
    has may be read or written; view() has them alone. The cache orders its work by one stream. Work
    of other streams on a sequence must be ordered before cut(), remove() and fork() of it, and
    before it grows after a cut().

    Threads may call any method at any time. The cache ends with free() or a `with` block, or when
    nothing holds it or a tensor of it.

    Attributes:
        buffer: the VirtualBuffer that it lies in.
        sequences: how many there can be at a time.
        tokens: how many each can have.

    Args:
        layers: attention layers.
        heads: key-value heads of a layer (on this GPU).
        head_dim: elements of a key, and of a value.
        dtype: of the elements.
        tokens: the most that a sequence may have. Addresses cost no memory.
        sequences: the most at a time.
        layout: what lies side by side: "tokens": all layers of a token, so that a sequence's
            last page is the only one that is partly used; "layers": all tokens of a layer's
            keys and values, so that a kernel reads neighbouring bytes, but each layer has a
            last page of its own for keys and for values.
        device: 0, "cuda:0" or a torch.device.
        stream: the stream of the work on the cache: a torch or CuPy stream, or a handle; 0: the
            legacy default stream.

    Raises:
        InvalidArgument: a number is below 1, or there is no such layout.
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
        device: Device = 0,
        stream: Stream = 0,
    ) -> None:
        """Reserves the addresses. Takes no memory."""
        shape = {
            "layers": layers,
            "heads": heads,
            "head_dim": head_dim,
            "tokens": tokens,
            "sequences": sequences,
        }
        for name, value in shape.items():
            shape[name] = count(f"{name} of a KVCache", value)
            if shape[name] < 1:
                raise InvalidArgument(f"{name} {value} of a KVCache: 1 or more")
        if not isinstance(dtype, importlib.import_module("torch").dtype):
            raise WrongType(f"the dtype of a KVCache is a torch.dtype, not {dtype!r}")
        item = dtype.itemsize
        self._by_token = word("layout", layout, _LAYOUTS) == "tokens"
        self.layers, self.heads, self.head_dim = shape["layers"], shape["heads"], shape["head_dim"]
        self.tokens, self.sequences = shape["tokens"], shape["sequences"]
        self.dtype = dtype
        vector = self.heads * self.head_dim * item
        regions = 1 if self._by_token else 2 * self.layers
        row = vector * 2 * self.layers // regions
        self._rows = _Rows(regions, row, -(-self.tokens * row // PAGE) * PAGE)
        # One more page, in which a page is copied before it changes hands.
        self._spare = self.sequences * self._rows.place
        self.buffer = VirtualBuffer(self._spare + PAGE, device, stream)
        self._lock = threading.RLock()
        self._places: dict[int, _Place] = {}
        self._free = list(range(self.sequences - 1, -1, -1))  # the last one ended is used first
        self._all: torch.Tensor | None = None

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
            InvalidArgument: no such sequence or layer.
        """
        with self._lock:
            place, index = self._place(sequence), self._layer(layer)
            vector, shape = self.heads * self.head_dim, (place.length, self.heads, self.head_dim)
            strides = (self._rows.row // self.dtype.itemsize, self.head_dim, 1)
            if self._by_token:
                tokens = self._pages(sequence, place, 0)
                keys, values = 2 * index * vector, (2 * index + 1) * vector
                return tokens.as_strided(shape, strides, keys), tokens.as_strided(
                    shape, strides, values
                )
            of_keys = self._pages(sequence, place, 2 * index)
            of_values = self._pages(sequence, place, 2 * index + 1)
            return of_keys.as_strided(shape, strides, 0), of_values.as_strided(shape, strides, 0)

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
        """
        with self._lock:
            wanted = self._length(tokens)
            sequence = self._begin()
            try:
                self._back(sequence, wanted)
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
            InvalidArgument: no such sequence, or more tokens than the cache allows; or a page would
                have to be mapped anew while a stream is being captured.
        """
        with self._lock:
            self._place(sequence)
            self._back(sequence, self._length(tokens))

    def cut(self, sequence: int, tokens: int) -> None:
        """Takes tokens off the end of a sequence, so that `tokens` are left. Whole pages are free.

        Args:
            sequence: its number.
            tokens: how many are left.

        Raises:
            InvalidArgument: no such sequence, or it has fewer tokens.
            InvalidPointer: a copy in no stream's order uses some of the pages. The tokens are gone
                all the same, and these pages stay until the place is used again.
        """
        with self._lock:
            place, left = self._place(sequence), self._length(tokens)
            if left > place.length:
                raise InvalidArgument(
                    f"sequence {sequence} has {place.length} tokens: cut() cannot leave {left}"
                )
            first, last = self._rows.pages(left), self._rows.pages(place.length)
            place.length = left
            place.shared = min(place.shared, first)
            place.regions.clear()
            self._unback(sequence, first, last)

    def remove(self, sequence: int) -> None:
        """Ends a sequence. Its memory serves others, after the work that the stream has by now.

        Args:
            sequence: its number.

        Raises:
            InvalidArgument: no such sequence.
            InvalidPointer: as of cut(). The sequence has ended all the same.
        """
        with self._lock:
            try:
                self.cut(sequence, 0)
            finally:
                if sequence in self._places:
                    self._end(sequence)

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
            InvalidArgument: no such sequence, or it has fewer tokens.
        """
        with self._lock:
            source = self._place(sequence)
            length = source.length if tokens is None else self._length(tokens)
            if length > source.length:
                raise InvalidArgument(
                    f"sequence {sequence} has {source.length} tokens, not {length} to share"
                )
            whole, pages = self._rows.whole(length), self._rows.pages(length)
            fork = self._begin()
            try:
                for region in range(self._rows.regions if whole else 0):
                    to, from_ = self._at(fork, region), self._at(sequence, region)
                    self.buffer.alias(to, self.buffer, from_, whole * PAGE)
                self._back_pages(fork, whole, pages)
                for region in range(self._rows.regions if pages > whole else 0):
                    to, from_ = self._at(fork, region, whole), self._at(sequence, region, whole)
                    self._copy(to, from_, length * self._rows.row - whole * PAGE)
            except BaseException:
                self._unback(fork, 0, pages)
                self._end(fork)
                raise
            place = self._places[fork]
            place.length, place.shared = length, whole
            source.shared = max(source.shared, whole)
            return fork

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
            self._places.clear()
            self._free.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._drop_tensors()
        self.buffer.__exit__(kind, error, trace)

    def _drop_tensors(self) -> None:
        self._all = None
        for place in self._places.values():
            place.regions.clear()

    def length(self, sequence: int) -> int:
        """How many tokens a sequence has memory for.

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

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._places)

    def __repr__(self) -> str:
        return (
            f"<glake.KVCache of {len(self)} of {self.sequences} sequences, up to {self.tokens} "
            f"tokens in {self.layers} layers, on cuda:{self.buffer.device}>"
        )

    def _pages(self, sequence: int, place: _Place, region: int) -> torch.Tensor:
        """The elements of a region's backed pages."""
        pages = self._rows.pages(place.length)
        if pages != place.pages:
            place.pages = pages
            place.regions.clear()
        if region not in place.regions:
            elements = pages * PAGE // self.dtype.itemsize
            at = self._at(sequence, region)
            place.regions[region] = self.buffer.tensor(self.dtype, [elements], at)
        return place.regions[region]

    def _tensor(self) -> torch.Tensor:
        """[sequences, layers, 2, tokens, heads, head_dim], strided."""
        with self._lock:
            if self._all is None:
                self._all = self._strided()
            return self._all

    def _strided(self) -> torch.Tensor:
        item, rows = self.dtype.itemsize, self._rows
        vector = self.heads * self.head_dim
        shape = (self.sequences, self.layers, 2, self.tokens, self.heads, self.head_dim)
        if self._by_token:
            inner = (2 * vector, vector, rows.row // item)
        else:
            inner = (2 * rows.stride // item, rows.stride // item, vector)
        flat = self.buffer.tensor(self.dtype, [self._spare // item])
        return flat.as_strided(shape, (rows.place // item, *inner, self.head_dim, 1))

    def _layer(self, layer: int) -> int:
        index = count("a layer", layer)
        if not 0 <= index < self.layers:
            raise InvalidArgument(
                f"layer {layer} of a cache that has layers 0 to {self.layers - 1}"
            )
        return index

    def _of_layer(self, layer: int, which: int) -> torch.Tensor:
        return self._tensor()[:, self._layer(layer), which]

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
        return place

    def _begin(self) -> int:
        if not self._free:
            raise OutOfMemory(
                f"all {self.sequences} places for sequences are in use: remove() one, or make the "
                "cache with more (places without tokens take no memory)"
            )
        sequence = self._free.pop()
        self._places[sequence] = _Place()
        return sequence

    def _end(self, sequence: int) -> None:
        del self._places[sequence]
        self._free.append(sequence)

    def _at(self, sequence: int, region: int, page: int = 0) -> int:
        """Offset of a region's page in the buffer."""
        return sequence * self._rows.place + region * self._rows.stride + page * PAGE

    def _back(self, sequence: int, tokens: int) -> None:
        """Backs the pages of the first `tokens`."""
        place, rows = self._places[sequence], self._rows
        if tokens <= place.length:
            return
        if rows.whole(place.length) < place.shared:
            self._own_last_page(sequence, place)
        self._back_pages(sequence, rows.pages(place.length), rows.pages(tokens))
        place.length = tokens

    def _back_pages(self, sequence: int, first: int, last: int) -> None:
        """Backs pages [first, last) of all regions, or none of them."""
        regions = range(self._rows.regions if last > first else 0)
        for region in regions:
            try:
                self.buffer.back(
                    self._at(sequence, region, first), self._at(sequence, region, last)
                )
            except BaseException:
                for done in range(region):
                    self.buffer.unback(
                        self._at(sequence, done, first), self._at(sequence, done, last)
                    )
                raise

    def _unback(self, sequence: int, first: int, last: int) -> None:
        """Unbacks pages [first, last) of all regions, also if one of them is refused."""
        with contextlib.ExitStack() as regions:
            for region in range(self._rows.regions if last > first else 0):
                ends = self._at(sequence, region, first), self._at(sequence, region, last)
                regions.callback(self.buffer.unback, *ends)

    def _own_last_page(self, sequence: int, place: _Place) -> None:
        """Gives a sequence a copy of its last page, which it shares and is about to write into.
        This happens after a cut() into a shared beginning."""
        page = self._rows.whole(place.length)
        used = place.length * self._rows.row - page * PAGE
        for region in range(self._rows.regions):
            at = self._at(sequence, region, page)
            if self.buffer.figures(at, at + PAGE)[1] == 0:
                continue  # the others have ended
            if _C.capturing(self.buffer.device):
                raise InvalidArgument(
                    f"sequence {sequence} was cut back into tokens that it shares, and cannot grow "
                    "while a stream is being captured, because a page must be mapped anew: grow it "
                    "before the capture"
                )
            self.buffer.back(self._spare)
            try:
                self._copy(self._spare, at, used)
                self.buffer.alias(at, self.buffer, self._spare, PAGE)
            finally:
                self.buffer.unback(self._spare)
        place.shared = page

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
