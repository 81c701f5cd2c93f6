"""A process with weights in glake.Buffers, which reads what to do line by line: see
tests/unit/test_deduplication.py. Each answer is one line of JSON."""

import contextlib
import ctypes
import json
import sys
from collections.abc import Iterator

import glake
from glake import _C, simcuda
from glake.errors import GlakeError
from glake.transfer import HOST, Raw, copy

MIB = 1 << 20
TOTAL = 256 * MIB  # the GPU's memory (GLAKE_SIM_MEMORY)
filling: list[glake.Buffer] = []
weights: dict[str, glake.Buffer] = {}
results: list[object] = []


def bytes_of(name: str) -> bytes:
    return bytes(index * 7 % 251 for index in range(256)) + name.encode().ljust(256, b".")


@contextlib.contextmanager
def pinned(nbytes: int) -> Iterator[int]:
    host = _C.host_malloc(nbytes)
    try:
        yield host
    finally:
        _C.host_free(host)


def put(buffer: glake.Buffer, offset: int, content: bytes) -> None:
    size = len(content)
    with pinned(size) as host:
        ctypes.memmove(host, content, size)
        copy(
            Raw(buffer.ptr + offset, size, buffer.device),
            Raw(host, size, HOST),
            stream=(buffer.device, 0),
        ).wait()


def get(buffer: glake.Buffer, offset: int, nbytes: int) -> bytes:
    with pinned(nbytes) as host:
        copy(Raw(host, nbytes, HOST), Raw(buffer.ptr + offset, nbytes, buffer.device)).wait()
        return ctypes.string_at(host, nbytes)


def load(prefix: str = "", count: int = 3, nbytes: int = 3 * MIB + 512, device: int = 0) -> None:
    """Makes weights that are equal in each process, and whatever the prefix of their names."""
    for index in range(count):
        name = f"layer{index}"
        weights[prefix + name] = buffer = glake.empty(nbytes, device)
        head = bytes_of(name)
        put(buffer, 0, head * (nbytes // len(head)))


def load_in_region(name: str) -> None:
    with glake.region(name):
        load()


def as_a_block(region: str) -> list[str]:
    """The errors of calls that take a weight's block, and of a pause of their region."""
    address = weights["layer0"].ptr
    told = []
    for call in (
        lambda: glake.pin(address).__exit__(),
        lambda: glake.share(address),
        lambda: glake.pause(region) and glake.resume(region),
    ):
        try:
            call()
            told.append("")
        except GlakeError as error:
            told.append(f"{type(error).__name__}: {error}")
    return told


def change(name: str, offset: int, value: int) -> None:
    put(weights[name], offset, bytes([value]))


def share(shard_size: int = 256 * MIB) -> dict[str, int]:
    result = glake.deduplicate(weights, shard_size)
    results.append(result)
    names = ("shared_bytes", "found_bytes", "given_back_bytes", "shards")
    return {name: getattr(result, name) for name in names}


def intact(prefix: str = "") -> bool:
    """Whether the weights still have what load() put there."""
    for name, buffer in weights.items():
        if name.startswith(prefix):
            head = bytes_of(name[len(prefix) :])
            whole = head * (buffer.nbytes // len(head))
            if get(buffer, 0, len(whole)) != whole:
                return False
    return True


def export() -> int:
    """Gives a weight to an array, which keeps its address."""
    results.append(weights["layer0"].__dlpack__(max_version=(1, 0)))
    return len(results)


def interfaces() -> list[object]:
    """What others are told of a weight that may not be written."""
    buffer = weights["layer0"]
    read_only = buffer.__cuda_array_interface__["data"][1]
    buffer.record_stream(0)
    newer = buffer.__dlpack__(max_version=(1, 0))
    assert newer is not None
    try:
        buffer.__dlpack__()
    except GlakeError as error:
        return [read_only, str(error)]
    return [read_only, "given"]


def private() -> bool:
    return not any(buffer.read_only for buffer in weights.values())


def undo() -> None:
    result = results[-1]
    assert isinstance(result, glake.Deduplicated)
    result.close()
    results.pop()


def drop_some(prefix: str) -> None:
    for name in [name for name in weights if name.startswith(prefix)]:
        del weights[name]


def drop() -> None:
    weights.clear()
    results.clear()
    filling.clear()


def used() -> int:
    """Bytes of the GPU that all processes of the machine hold."""
    _C.empty_cache(0)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver, context = ctypes.CDLL(_C.driver_path()), ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert driver.cuDevicePrimaryCtxRelease_v2(0) == 0
    return total.value - free.value


def fill(leave: int) -> None:
    """Takes the GPU's memory but for `leave` bytes."""
    with glake.empty(MIB):
        pass
    filling.append(glake.empty(TOTAL - used() - leave))


def violations() -> list[str]:
    return [each["kind"] for each in simcuda.violations(clear=True)]


def main() -> None:
    commands = (
        load,
        load_in_region,
        as_a_block,
        change,
        share,
        intact,
        export,
        interfaces,
        private,
        undo,
        drop,
        drop_some,
        used,
        fill,
        violations,
    )
    named = {each.__name__: each for each in commands}
    named["fail"] = simcuda.fail
    named["calls"] = simcuda.calls
    named["stats"] = lambda: {
        key: value for key, value in glake.stats().items() if "deduplication" in key
    }
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = named[name](*arguments)
        except GlakeError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
            if error.begun is not None:
                results.append(error.begun)
                answer["begun"] = error.begun.shared_bytes
        print(json.dumps(answer), flush=True)
    drop()
    _C.shutdown()


main()
