"""Shards of weights: packed, hashed, shared with other processes, and found again."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import queue
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from glake import _C
from glake.allocator.buffer import capturing
from glake.allocator.shard_registry import Registry, writer_of
from glake.allocator.weights import Weight
from glake.errors import (
    GlakeError,
    InvalidArgument,
    InvalidDevice,
    InvalidPointer,
    MemoryOwed,
    OutOfMemory,
)

ALIGN = 512  # bytes: where a storage may begin, as in glake's arenas
PIECE = 8 << 20  # bytes that a thread hashes at once, in a pinned buffer
THREADS = 4
SILENCE_S = 10.0  # a process that is not stopped answers sooner, and a dead one's socket is gone
_VERSION = b"glake-shard-1"  # part of every hash: changes when the layout of shards does

_left: deque[tuple[int, int]] = deque()  # shards that could not be closed yet


class Shard:
    """A shard that this process has mapped. It is closed when nothing holds it any more: no tensor
    or buffer that lies in it."""

    def __init__(self, ptr: int, device: int, nbytes: int, key: str) -> None:
        """Takes over a shard that is open at `ptr`."""
        self.ptr, self.device, self.nbytes, self.key = ptr, device, nbytes, key
        # At exit the driver takes the memory back with the process.
        weakref.finalize(self, _close, ptr, device).atexit = False


def _close(ptr: int, device: int) -> None:
    try:
        if capturing(device):
            _left.append((ptr, device))
        else:
            _C.shard_close(ptr)
    except (MemoryOwed, InvalidPointer):  # closed; the core tries the rest again
        pass
    except GlakeError:  # a stream is being captured, or the driver refuses: later
        _left.append((ptr, device))


def close_left() -> None:
    """Tries again to close shards that nothing holds."""
    for _ in range(len(_left)):
        with contextlib.suppress(IndexError):  # another thread was faster
            _close(*_left.popleft())


@dataclass
class Part:
    """Equal weights, and where they lie in their shard."""

    digest: bytes
    weights: list[Weight]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of one of the weights."""
        return self.weights[0].nbytes


@dataclass
class Content:
    """What one shard holds, or will hold."""

    device: int
    parts: list[Part] = field(default_factory=list)
    nbytes: int = 0

    def add(self, part: Part) -> None:
        """Puts the part behind the others."""
        part.offset = -(-self.nbytes // ALIGN) * ALIGN
        self.parts.append(part)
        self.nbytes = part.offset + part.nbytes

    def key(self) -> str:
        """A hash of the contents, their places and the GPU."""
        uuid = _C.device_uuid(self.device)
        if not any(uuid):
            raise InvalidDevice(
                f"the driver does not tell cuda:{self.device} from other GPUs, so that no shard "
                "can be known to be on it"
            )
        digest = hashlib.sha256(_VERSION + uuid)
        for part in self.parts:
            digest.update(part.offset.to_bytes(8, "little") + part.digest)
        return digest.hexdigest()


def plan(weights: Sequence[Weight], shard_size: int) -> list[Content]:
    """Hashes the weights, and divides them into shards in their order. Of equal weights of one GPU
    only the first takes room."""
    parts: dict[tuple[int, bytes], Part] = {}
    contents: list[Content] = []
    last: dict[int, Content] = {}
    for weight, digest in zip(weights, digests([_span(each) for each in weights]), strict=True):
        known = parts.get((weight.device, digest))
        if known is not None:
            known.weights.append(weight)
            continue
        part = parts[weight.device, digest] = Part(digest, [weight])
        content = last.get(weight.device)
        if content is None or content.nbytes + ALIGN + part.nbytes > shard_size:
            content = last[weight.device] = Content(weight.device)
            contents.append(content)
        content.add(part)
    return contents


def _span(weight: Weight, address: int | None = None) -> Span:
    """The weight's bytes, or equal ones at another address."""
    there = weight.address if address is None else address
    return Span(weight.layout, weight.device, weight.stream, there, weight.nbytes)


@dataclass(frozen=True)
class Span:
    """Bytes of a GPU, and what they mean."""

    layout: str
    device: int
    stream: int
    address: int
    nbytes: int

    def pieces(self) -> list[tuple[tuple[int, int], int, int]]:
        """((GPU, stream), address, bytes) of what is hashed at once."""
        on, end = (self.device, self.stream), self.address + self.nbytes
        begins = range(self.address, end, PIECE)
        return [(on, begin, min(PIECE, end - begin)) for begin in begins]


def digests(spans: Sequence[Span]) -> list[bytes]:
    """A hash of each span's bytes and layout.

    Threads hash a piece each, which they copy to a pinned buffer of their own. So copies and hashes
    overlap, and no more than THREADS pieces are on the host.
    """
    from glake.transfer import HOST, Raw, copy
    from glake.transfer.host import pinned_block

    threads = min(THREADS, os.cpu_count() or 1)
    buffers: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
    for _ in range(threads):
        buffers.put(pinned_block(PIECE))

    def hashed(piece: tuple[tuple[int, int], int, int]) -> bytes:
        on, address, size = piece
        memory, there = buffer = buffers.get()
        try:
            copy(Raw(there, size, HOST), Raw(address, size, on[0]), stream=on).wait()
            return hashlib.sha256(memoryview(memory)[:size]).digest()
        finally:
            buffers.put(buffer)

    found = []
    with ThreadPoolExecutor(threads, "glake-hash") as pool:
        of_pieces = pool.map(hashed, [piece for span in spans for piece in span.pieces()])
        for span in spans:
            digest = hashlib.sha256(_VERSION + span.layout.encode() + b"\0")
            for each in itertools.islice(of_pieces, len(span.pieces())):
                digest.update(each)
            found.append(digest.digest())
    return found


def start_copy(dst: int, src: int, weight: Weight) -> Any:
    """Starts a copy of a weight's bytes on its GPU, after the work of its stream."""
    from glake.transfer import Raw, copy

    ends = Raw(dst, weight.nbytes, weight.device), Raw(src, weight.nbytes, weight.device)
    return copy(*ends, stream=(weight.device, weight.stream))


class Shelf:
    """The shards that this process has mapped, and where in them each weight lies."""

    def __init__(self) -> None:
        """Holds nothing yet. It keeps no shard alive."""
        self._shards: weakref.WeakValueDictionary[str, Shard] = weakref.WeakValueDictionary()
        # Several shards may hold equal weights, and any of them may go first.
        self._places: dict[tuple[int, bytes], list[tuple[weakref.ref[Shard], int]]] = {}

    def contains(self, address: int) -> bool:
        """Whether the address is in one of the shards."""
        return any(each.ptr <= address < each.ptr + each.nbytes for each in self._shards.values())

    def find(self, content: Content) -> list[tuple[Part, Shard, int]] | None:
        """The place of each part, if this process has all of them in shards already."""
        places = []
        for part in content.parts:
            known = self._places.get((content.device, part.digest), [])
            live = ((reference(), offset) for reference, offset in known)
            shard, offset = next((each for each in live if each[0] is not None), (None, 0))
            if shard is None:
                return None
            places.append((part, shard, offset))
        return places

    def keep(self, content: Content, shard: Shard) -> list[tuple[Part, Shard, int]]:
        """Notes the shard. Returns the place of each part."""
        live = {key: [each for each in known if each[0]()] for key, known in self._places.items()}
        self._places = {key: known for key, known in live.items() if known}
        self._shards[shard.key] = shard
        for part in content.parts:
            places = self._places.setdefault((content.device, part.digest), [])
            places.append((weakref.ref(shard), part.offset))
        return [(part, shard, part.offset) for part in content.parts]

    def bytes(self) -> int:
        """The bytes of all shards that are mapped here."""
        return sum(each.nbytes for each in self._shards.values())

    def count(self) -> int:
        """How many there are."""
        return len(self._shards)


def obtain(content: Content, registry: Registry) -> tuple[Shard, bool]:
    """Opens the shard with this content, or makes it. Returns it, and whether it was there."""
    key = content.key()
    with registry.locked(key):
        ptr, valid = _open_any(registry.texts(key), content, registry.silent)
        found = ptr is not None
        if ptr is None:
            ptr = _made(content)
        shard = Shard(ptr, content.device, content.nbytes, key)
        # Every process that has the shard can give it on, so that it outlives its maker.
        registry.store(key, [*valid, _C.shard_share(ptr)])
    return shard, found


def _open_any(texts: list[str], content: Content, silent: set[str]) -> tuple[int | None, list[str]]:
    """The address of the shard by the first text that works; None: no text does. Also the texts
    without those that were tried in vain.

    A process that is stopped does not answer for a long time. It is asked once, and becomes one of
    the `silent`. Its texts stay, because it may go on.
    """
    kept = []
    for count, text in enumerate(texts):
        writer = writer_of(text)
        if writer in silent:
            kept.append(text)
            continue
        begin = time.monotonic()
        try:
            ptr, nbytes = _C.shard_open(text, content.device)
        except (InvalidPointer, InvalidArgument, InvalidDevice):
            # Its process is gone or has closed it, or is stopped; or nobody wrote such a text.
            if time.monotonic() - begin > SILENCE_S:
                silent.add(writer)
                kept.append(text)
            continue
        if nbytes == content.nbytes:
            return ptr, [*texts[count:], *kept]
        _close(ptr, content.device)
    return None, kept


def _made(content: Content) -> int:
    """A new sealed shard with copies of the weights. Nothing is left of it after an error."""
    try:
        ptr = _C.shard_create(content.nbytes, content.device)
    except OutOfMemory:
        _C.empty_cache(content.device)
        ptr = _C.shard_create(content.nbytes, content.device)
    try:
        copies = [
            start_copy(ptr + part.offset, part.weights[0].address, part.weights[0])
            for part in content.parts
        ]
        for each in copies:
            each.wait()
        _C.shard_seal(ptr)
        spans = [_span(part.weights[0], ptr + part.offset) for part in content.parts]
        for part, digest in zip(content.parts, digests(spans), strict=True):
            if digest != part.digest:
                raise InvalidArgument(
                    f"{part.weights[0].name!r} was written while it was shared: end all work that "
                    "writes weights before deduplicate()"
                )
    except BaseException:
        _close(ptr, content.device)
        raise
    return ptr
