"""Control of the simulated driver (csrc/simcuda/simcuda.h): faults, clock, calls, books.

For tests and benchmarks. The library is the one GLAKE_DRIVER=sim uses, so what is set here holds
for glake in this process. Loading it touches no device; nothing is loaded before the first call.
"""

import ctypes
import functools
import json
from collections.abc import Callable
from typing import Any

from glake import library_path
from glake.errors import DriverAbsent, InvalidOption

_Text = ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "simcuda_configure": (ctypes.c_int, [_Text, _Text]),
    "simcuda_reset": (ctypes.c_int, []),
    "simcuda_fail": (ctypes.c_int, [_Text, ctypes.c_int64, ctypes.c_int, ctypes.c_int64]),
    "simcuda_calls": (ctypes.c_int64, [_Text]),
    "simcuda_cost_us": (ctypes.c_double, [_Text]),
    "simcuda_reset_calls": (None, []),
    "simcuda_now_ns": (ctypes.c_uint64, []),
    "simcuda_tick": (None, [ctypes.c_uint64]),
    "simcuda_ledger": (ctypes.c_size_t, [ctypes.c_int, _Text, ctypes.c_size_t]),
    "simcuda_violations": (ctypes.c_size_t, [_Text, ctypes.c_size_t, ctypes.c_int]),
}


@functools.cache
def _library() -> ctypes.CDLL:
    path = library_path().with_name("libsimcuda.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DriverAbsent(f"cannot load the simulator {path}: {error}; reinstall glake") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _json(read: Callable[[ctypes.Array[ctypes.c_char], int], int]) -> Any:
    room = 1 << 16
    while True:
        text = ctypes.create_string_buffer(room)
        length = read(text, room)
        if length < room:
            return json.loads(text.value)
        room = length + (1 << 12)


def configure(key: str, value: str | int) -> None:
    """Sets an option, such as ("memory", "64MiB"). InvalidOption: unknown, refused or too late."""
    code = _library().simcuda_configure(key.encode(), str(value).encode())
    if code != 0:
        raise InvalidOption(
            f"the simulator refused {key}={value!r} (CUresult {code}): see simcuda.h for the "
            "options; most must be set before the first use of a device, or after reset()"
        )


def reset() -> None:
    """Forgets devices, streams, books, faults and options. Nothing may be using the simulator."""
    code = _library().simcuda_reset()
    if code != 0:
        raise InvalidOption(f"the simulator refused to be reset (CUresult {code})")


def fail(symbol: str | None = None, k: int = 1, code: int = 2, times: int = 1) -> None:
    """Fails the k-th later call of `symbol` ("*": of any) with CUresult `code`, `times` in a row.

    times = -1 fails for good; symbol None disarms all. The default code is out-of-memory.
    """
    name = None if symbol is None else symbol.encode()
    result = _library().simcuda_fail(name, k, code, times)
    if result != 0:
        raise InvalidOption(f"the simulator cannot fail call {k} of {symbol!r} (CUresult {result})")


def calls(symbol: str = "*") -> int:
    """Calls made of `symbol`, or of all, since the last reset_calls()."""
    return int(_library().simcuda_calls(symbol.encode()))


def cost_us(symbol: str = "*") -> float:
    """Modelled time of those calls in microseconds."""
    return float(_library().simcuda_cost_us(symbol.encode()))


def reset_calls() -> None:
    """Sets the counts and costs to zero."""
    _library().simcuda_reset_calls()


def now_ns() -> int:
    """The virtual clock in nanoseconds."""
    return int(_library().simcuda_now_ns())


def tick(ticks: int = 1) -> None:
    """Passes `ticks` host events, by which `complete_after` measures."""
    _library().simcuda_tick(ticks)


def ledger(device: int = 0) -> dict[str, Any]:
    """What lives on a device: reservations, handles, mappings, accesses, events, streams, bytes."""
    books: dict[str, Any] = _json(lambda to, room: _library().simcuda_ledger(device, to, room))
    return books


def violations(clear: bool = False) -> list[dict[str, Any]]:
    """What a GPU leaves undefined and was done: kind, detail and time_ns of each."""
    found: list[dict[str, Any]] = _json(lambda to, room: _library().simcuda_violations(to, room, 0))
    if clear and found:
        _library().simcuda_violations(None, 0, 1)
    return found
