"""A simulated machine for the benchmark: driver calls, streams, events, buffers, the clock.

It belongs to this process, whose driver is the simulator. Memory is phantom: a GiB takes no real
memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from glake import _C, simcuda
from glake.errors import DriverError
from glake.transfer.bench.cases import INTERLEAVED, LOCAL

STRIPE = 4 << 20  # bytes of interleaved host memory on one socket; fewer for short copies
_ALIGNED = 4096
_Pointer = ctypes.c_void_p


class Machine:
    """The machine on which copies are made. There is at most one at a time. close() gives its
    memory back."""

    def __init__(self, sockets: list[list[int]], most: int) -> None:
        """`most` is the size of the largest copy."""
        self._sockets, self._most = sockets, most
        self._contexts: dict[int, _Pointer] = {}
        self._streams: dict[tuple[int, str], int] = {}
        self._events: dict[tuple[int, str], int] = {}
        self._reached: set[tuple[int, int]] = set()
        self._buffers: dict[tuple[int, str], int] = {}

    def call(self, name: str, *arguments: object) -> None:
        """Makes a driver call. Raises DriverError if the call fails."""
        code = getattr(simcuda._library(), name)(*arguments)
        if code != 0:
            raise DriverError(f"the simulator's {name} returned CUresult {code}")

    def on(self, gpu: int) -> None:
        """Makes the GPU's context the current one."""
        if gpu not in self._contexts:
            context = _Pointer()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
            self._contexts[gpu] = context
        self.call("cuCtxSetCurrent", self._contexts[gpu])

    def stream(self, gpu: int, name: str) -> int:
        """The GPU's stream with that name."""
        if (gpu, name) not in self._streams:
            made = _Pointer()
            self.on(gpu)
            self.call("cuStreamCreate", ctypes.byref(made), 1)
            self._streams[gpu, name] = made.value or 0
        return self._streams[gpu, name]

    def record(self, gpu: int, stream: int, name: str) -> int:
        """Records the GPU's event with that name in its stream."""
        self.on(gpu)
        if (gpu, name) not in self._events:
            made = _Pointer()
            self.call("cuEventCreate", ctypes.byref(made), 0)
            self._events[gpu, name] = made.value or 0
        event = self._events[gpu, name]
        self.call("cuEventRecord", _Pointer(event), _Pointer(stream))
        return event

    def after(self, gpu: int, stream: int, event: int) -> None:
        """Makes later work of the stream wait for the event."""
        self.on(gpu)
        self.call("cuStreamWaitEvent", _Pointer(stream), _Pointer(event), 0)

    def copy(self, dst: int, src: int, size: int, gpu: int, stream: int, to: int, of: int) -> None:
        """Makes one driver copy in a stream of `gpu`, from GPU `of` to GPU `to` (-1: host
        memory)."""
        self.on(gpu)
        ends = ctypes.c_uint64(dst), ctypes.c_uint64(src)
        length, at = ctypes.c_size_t(size), _Pointer(stream)
        if to >= 0 and of >= 0:
            for peer in (to, of, gpu):
                self._reach(peer, gpu)
                self.on(peer)
            into, outof = self._contexts[to], self._contexts[of]
            self.call("cuMemcpyPeerAsync", ends[0], into, ends[1], outof, length, at)
        else:
            self.call("cuMemcpyAsync", *ends, length, at)

    def _reach(self, memory_of: int, gpu: int) -> None:
        """Gives `gpu` access to the other GPU's memory, so that copies are not staged."""
        if memory_of == gpu or (memory_of, gpu) in self._reached:
            return
        self._reached.add((memory_of, gpu))
        possible = ctypes.c_int()
        self.call("cuDeviceCanAccessPeer", ctypes.byref(possible), gpu, memory_of)
        if possible.value:
            _C.enable_peer_access(memory_of, gpu)

    def synchronize(self, event: int) -> None:
        """Waits for an event, which moves virtual time."""
        self.call("cuEventSynchronize", _Pointer(event))

    def nanoseconds(self, start: int, end: int) -> float:
        """The virtual time between two events."""
        milliseconds = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), _Pointer(start), _Pointer(end))
        return milliseconds.value * 1e6

    def device_buffer(self, gpu: int, name: str, size: int | None = None) -> int:
        """The GPU's buffer with that name. It has the size of the largest copy unless `size` is
        given."""
        if (gpu, name) not in self._buffers:
            self._buffers[gpu, name] = _C.malloc(size or self._most, gpu)
        return self._buffers[gpu, name]

    def host_buffer(self, name: str, size: int, gpu: int, host: str) -> int:
        """Pinned memory. Its first `size` bytes lie as `host` says, for a copy of that GPU."""
        if (-1, name) not in self._buffers:
            self._buffers[-1, name] = _C.host_malloc(self._most)
        at = self._buffers[-1, name]
        for begin, length, node in self._stripes(size, gpu, host):
            simcuda.place_host(at + begin, length, node)
        return at

    def _stripes(self, size: int, gpu: int, host: str) -> Iterable[tuple[int, int, int]]:
        """(offset, bytes, socket) of a buffer's stretches. Socket -1: the socket changes every
        page."""
        sockets = len(self._sockets)
        if host == LOCAL:
            return [(0, size, next(s for s, gpus in enumerate(self._sockets) if gpu in gpus))]
        if host != INTERLEAVED or sockets == 1:
            return [(0, size, -1 if sockets > 1 else 0)]
        # Each socket holds an equal part of any size: the last round of stripes is shorter.
        found: list[tuple[int, int, int]] = []
        begin = 0
        while begin < size:
            left = -(-(size - begin) // sockets)
            stripe = min(STRIPE, -(-left // _ALIGNED) * _ALIGNED)
            for node in range(sockets):
                length = min(stripe, size - begin)
                if length > 0:
                    found.append((begin, length, node))
                begin += length
        return found

    def close(self) -> None:
        """Frees all buffers."""
        for (gpu, _), address in self._buffers.items():
            _C.host_free(address) if gpu < 0 else _C.free(address)
        self._buffers.clear()
