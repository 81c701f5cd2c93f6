"""Streams of the simulated driver, and streams that a test holds up."""

import ctypes

from glake import _C, simcuda


def call(name: str, *arguments: object) -> None:
    code = getattr(simcuda._library(), name)(*arguments)
    assert code == 0, f"{name}: {code}"


class Stream:
    """A stream of a GPU, used in its own context."""

    def __init__(self, gpu: int) -> None:
        _C.free(_C.malloc(1, gpu))  # makes the GPU's context
        self.gpu, made = gpu, ctypes.c_void_p()
        with self:
            call("cuStreamCreate", ctypes.byref(made), 1)
        self.handle = made.value or 0

    def __enter__(self) -> None:
        context = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.gpu)
        call("cuCtxPushCurrent_v2", context)

    def __exit__(self, *_: object) -> None:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        call("cuDevicePrimaryCtxRelease_v2", self.gpu)

    def fill(self, address: int, value: int, size: int) -> None:
        """Enqueues a write of `size` bytes."""
        with self:
            call("cuMemsetD8Async", ctypes.c_uint64(address), value, ctypes.c_size_t(size),
                 ctypes.c_void_p(self.handle))  # fmt: skip

    def copy(self, dst: int, src: int, size: int) -> None:
        with self:
            call("cuMemcpyAsync", ctypes.c_uint64(dst), ctypes.c_uint64(src), ctypes.c_size_t(size),
                 ctypes.c_void_p(self.handle))  # fmt: skip

    def begin_capture(self) -> None:
        with self:
            call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.handle), 2)

    def end_capture(self) -> None:
        """Ends the capture, and drops its graph."""
        graph = ctypes.c_void_p()
        with self:
            call("cuStreamEndCapture", ctypes.c_void_p(self.handle), ctypes.byref(graph))
            if graph.value:
                call("cuGraphDestroy", graph)

    def synchronize(self) -> None:
        with self:
            call("cuStreamSynchronize", ctypes.c_void_p(self.handle))


class Stuck(Stream):
    """A stream whose work waits for release()."""

    def __init__(self, gpu: int, at_once: bool = True) -> None:
        super().__init__(gpu)
        self.word = ctypes.c_uint32.from_address(_C.host_malloc(4))
        self.word.value = 0
        if at_once:
            self.hold()

    def hold(self) -> None:
        """Makes the work that is enqueued from now on wait."""
        with self:
            call("cuStreamWaitValue32_v2", ctypes.c_void_p(self.handle),
                 ctypes.c_uint64(ctypes.addressof(self.word)), 1, 0)  # fmt: skip

    def release(self) -> None:
        self.word.value = 1
