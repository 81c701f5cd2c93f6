"""Control of the simulated driver (simcuda/include/simcuda/simcuda.h): faults, clock, calls, books.

For tests and benchmarks. The library is the one GLAKE_DRIVER=sim uses, so what is set here holds
for glake in this process. Loading it touches no device; nothing is loaded before the first call.
"""

import ctypes
import functools
import json
from collections.abc import Callable
from typing import Any

from glake import arguments, library_path
from glake.errors import DriverAbsent, InvalidOption
from glake.typing import Device

_Text = ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "simcuda_configure": (ctypes.c_int, [_Text, _Text]),
    "simcuda_reset": (ctypes.c_int, []),
    "simcuda_fail": (ctypes.c_int, [_Text, ctypes.c_int64, ctypes.c_int, ctypes.c_int64]),
    "simcuda_calls": (ctypes.c_int64, [_Text]),
    "simcuda_cost_us": (ctypes.c_double, [_Text]),
    "simcuda_further_pages": (ctypes.c_int64, [_Text]),
    "simcuda_reset_calls": (None, []),
    "simcuda_price": (
        ctypes.c_int,
        [_Text, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)],
    ),
    "simcuda_table_price": (
        ctypes.c_int,
        [_Text, _Text, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)],
    ),
    "simcuda_now_ns": (ctypes.c_uint64, []),
    "simcuda_tick": (None, [ctypes.c_uint64]),
    "simcuda_expect": (ctypes.c_int, [ctypes.c_int]),
    "simcuda_work": (ctypes.c_int, [ctypes.c_int, ctypes.c_int]),
    "simcuda_set_link": (ctypes.c_int, [_Text, _Text, ctypes.c_double]),
    "simcuda_set_link_at": (ctypes.c_int, [ctypes.c_uint64, _Text, _Text, ctypes.c_double]),
    "simcuda_fail_copy": (
        ctypes.c_int,
        [_Text, _Text, ctypes.c_int64, ctypes.c_int, ctypes.c_int64],
    ),
    "simcuda_stall_copy": (ctypes.c_int, [_Text, _Text, ctypes.c_int64, ctypes.c_uint64]),
    "simcuda_corrupt_copy": (ctypes.c_int, [_Text, _Text, ctypes.c_int64, ctypes.c_int64]),
    "simcuda_edges": (ctypes.c_size_t, [_Text, ctypes.c_size_t, ctypes.c_int]),
    "simcuda_watch_landings": (ctypes.c_int, [ctypes.c_uint64, ctypes.c_size_t]),
    "simcuda_landings": (ctypes.c_int, [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]),
    "simcuda_landed": (ctypes.c_uint64, [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]),
    "simcuda_place_host": (ctypes.c_int, [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]),
    "simcuda_host_node": (
        ctypes.c_int,
        [ctypes.c_uint64, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)],
    ),
    "simcuda_last_message": (ctypes.c_size_t, [_Text, ctypes.c_size_t]),
    "simcuda_ledger": (ctypes.c_size_t, [ctypes.c_int, _Text, ctypes.c_size_t]),
    "simcuda_violations": (ctypes.c_size_t, [_Text, ctypes.c_size_t, ctypes.c_int]),
}


_resets = 0


@functools.cache
def _library() -> ctypes.CDLL:
    path = library_path().with_name("libsimcuda.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DriverAbsent(f"cannot load the simulator {path}: {error}; reinstall glake") from error
    for name, (result, taken) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, taken
    return library


def _json(read: Callable[[ctypes.Array[ctypes.c_char], int], int]) -> Any:
    room = 1 << 16
    while True:
        text = ctypes.create_string_buffer(room)
        length = read(text, room)
        if length < room:
            return json.loads(text.value)
        room = length + (1 << 12)


def _check(code: int, what: str) -> None:
    if code == 0:
        return
    why = ctypes.create_string_buffer(512)
    _library().simcuda_last_message(why, len(why))
    raise InvalidOption(f"the simulator refused {what} (CUresult {code}): {why.value.decode()}")


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
    global _resets
    code = _library().simcuda_reset()
    if code != 0:
        raise InvalidOption(f"the simulator refused to be reset (CUresult {code})")
    _resets += 1


def resets() -> int:
    """How often this process has reset it: what was learnt of a machine of before is void."""
    return _resets


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


def cost_by_us(table: str, symbol: str) -> float:
    """Modelled time of the calls of `symbol` by a table of prices, whatever is in force: one of
    ``glake.trace.replay.COST_TABLES`` or of the cost file. InvalidOption: no such table or call."""
    first, further = _price_by(table, symbol)
    pages = int(_library().simcuda_further_pages(symbol.encode()))
    return calls(symbol) * first + pages * further


@functools.cache
def _price_by(table: str, symbol: str) -> tuple[float, float]:
    first, further = ctypes.c_double(), ctypes.c_double()
    result = _library().simcuda_table_price(
        table.encode(), symbol.encode(), ctypes.byref(first), ctypes.byref(further)
    )
    _check(result, f"to tell the price of {symbol} by {table}")
    return first.value, further.value


def reset_calls() -> None:
    """Sets the counts and costs to zero."""
    _library().simcuda_reset_calls()


def price_us(symbol: str) -> float:
    """Modelled time of one call of `symbol`. InvalidOption: the simulator has no such call."""
    first, further = ctypes.c_double(), ctypes.c_double()
    result = _library().simcuda_price(symbol.encode(), ctypes.byref(first), ctypes.byref(further))
    _check(result, f"to tell the price of {symbol}")
    return first.value


def now_ns() -> int:
    """The virtual clock in nanoseconds."""
    return int(_library().simcuda_now_ns())


def tick(ticks: int = 1) -> None:
    """Passes `ticks` host events, by which `complete_after` measures."""
    _library().simcuda_tick(ticks)


def ledger(device: Device = 0) -> dict[str, Any]:
    """What lives on a device: reservations, handles, mappings, accesses, events, streams, bytes."""
    gpu = arguments.device_number(device)
    books: dict[str, Any] = _json(lambda to, room: _library().simcuda_ledger(gpu, to, room))
    return books


def violations(clear: bool = False) -> list[dict[str, Any]]:
    """What a GPU leaves undefined and was done: kind, detail and time_ns of each."""
    found: list[dict[str, Any]] = _json(lambda to, room: _library().simcuda_violations(to, room, 0))
    if clear and found:
        _library().simcuda_violations(None, 0, 1)
    return found


def set_link(source: str, target: str, rate: float, at_ns: int | None = None) -> None:
    """Sets a link's speed ("s0", "u0": in the platform's terms) in GB/s, from at_ns on or now.

    Copies under way go on at the new speed; at 0 they stand still, or end with the CUresult of
    option `dead_link`. InvalidOption: no such link or speed, or no device was used yet.
    """
    names, what = (source.encode(), target.encode()), f"{rate} GB/s for link {source}>{target}"
    if at_ns is None:
        _check(_library().simcuda_set_link(*names, rate), what)
    else:
        _check(_library().simcuda_set_link_at(at_ns, *names, rate), what)


def fail_copy(
    source: str | None = None, target: str = "*", k: int = 1, code: int = 719, times: int = 1
) -> None:
    """The k-th later copy between two places ends with CUresult `code` and lands nothing.

    Places are "g3", "m0" (host memory of socket 0), "host" and "*". `times` in a row, -1 for good;
    source None disarms all, stalls too. Who waits for the copy's event or stream is given the code;
    the context is well. InvalidOption: no such place or number, or no device was used yet.
    """
    name = None if source is None else source.encode()
    result = _library().simcuda_fail_copy(name, target.encode(), k, code, times)
    _check(result, f"to fail copy {k} from {source} to {target}")


def stall_copy(source: str, target: str, k: int, ns: int) -> None:
    """The k-th later copy between two places starts `ns` later. Otherwise as fail_copy."""
    result = _library().simcuda_stall_copy(source.encode(), target.encode(), k, ns)
    _check(result, f"to stall copy {k} from {source} to {target} by {ns} ns")


def corrupt_copy(source: str, target: str, k: int = 1, times: int = 1) -> None:
    """The k-th later copy between two places lands with its first bit flipped. Otherwise as
    fail_copy."""
    result = _library().simcuda_corrupt_copy(source.encode(), target.encode(), k, times)
    _check(result, f"to corrupt copy {k} from {source} to {target}")


def edges(clear: bool = False) -> dict[str, Any]:
    """What each link carried since the last clear: {"edges": {"s0>u0": {"rate", "peak" (GB/s),
    "load" (the most of its rate that was in use), "bytes"}}, "joint": limits over several edges}.
    """
    loads: dict[str, Any] = _json(lambda to, room: _library().simcuda_edges(to, room, 0))
    if clear:
        _library().simcuda_edges(None, 0, 1)
    return loads


def watch_landings(address: int, size: int) -> None:
    """Counts how often copies write each byte of the range from now on; size 0 ends all of it."""
    _check(_library().simcuda_watch_landings(address, size), "to watch a range")


def landings(address: int, size: int) -> bytes:
    """The counts, a byte each, 255 for more. InvalidOption: part of the range is not watched."""
    counts = ctypes.create_string_buffer(size)
    _check(_library().simcuda_landings(address, size, counts), "to tell of landings")
    return counts.raw


def landed(address: int, size: int, times: int = 1) -> int:
    """Bytes of a watched range that copies wrote exactly `times` times; -1: more than once.

    InvalidOption: part of the range is not watched.
    """
    total = int(_library().simcuda_landed(address, size, times))
    if total == 2**64 - 1:
        raise InvalidOption(f"[{address:#x}, +{size}) is not watched: see watch_landings()")
    return total


def place_host(address: int, size: int, node: int) -> None:
    """Host memory there is on NUMA node `node`, or spread over all (-1): routes of copies go by it.

    Nodes are the platform's `numa_nodes`; where it has none, socket S is node S.
    InvalidOption: the platform has no such socket, or no device was used yet.
    """
    _check(_library().simcuda_place_host(address, size, node), f"socket {node} for host memory")


def host_node(address: int, size: int) -> int:
    """The NUMA node of host memory (of a socket with several, its first); -1: spread over all; -2:
    by the device a copy goes to or from."""
    node = ctypes.c_int()
    _check(_library().simcuda_host_node(address, size, ctypes.byref(node)), "to tell a socket")
    return node.value


def expect_threads(count: int) -> None:
    """`count` threads are about to call thread_at_work(True): time stands still until they have."""
    _check(_library().simcuda_expect(count), f"to expect {count} threads")


def thread_at_work(at_work: bool, rank: int = 0) -> None:
    """Time moves only while this thread waits in the driver, too. See simcuda_work in simcuda.h."""
    _check(_library().simcuda_work(int(at_work), rank), "a thread at work")
