"""Control of the simulated driver (simcuda/include/simcuda/simcuda.h): faults, clock, calls, books.

It is for tests and benchmarks. The library is the one that GLAKE_DRIVER=sim uses, so settings made
here hold for glake in this process. The first call loads it, which touches no device. Every call
raises WrongType for an argument of another type, and DriverAbsent if the library is missing.
"""

from __future__ import annotations

import abc
import ctypes
import functools
import json
from collections.abc import Callable
from typing import Any, TypedDict

from glake import arguments, library_path
from glake.errors import DriverAbsent, InvalidDevice, InvalidOption, WrongType
from glake.typing import Device

__all__ = [
    "Joint",
    "Link",
    "Links",
    "Violation",
    "calls",
    "configure",
    "corrupt_copy",
    "cost_by_us",
    "cost_us",
    "edges",
    "expect_threads",
    "fail",
    "fail_copy",
    "host_node",
    "landed",
    "landings",
    "ledger",
    "now_ns",
    "place_host",
    "price_us",
    "reset",
    "reset_calls",
    "resets",
    "set_link",
    "stall_copy",
    "thread_at_work",
    "tick",
    "violations",
    "watch_landings",
]


class Violation(TypedDict):
    """An action that a GPU leaves undefined."""

    kind: str
    detail: str
    time_ns: int


class Link(TypedDict):
    """The traffic of one direction of a link."""

    rate: float  # GB/s
    peak: float  # GB/s
    load: float  # the largest part of its rate that was in use, 0 to 1
    bytes: int


class Joint(TypedDict):
    """The use of a limit over several edges by copies."""

    edges: list[str]
    limit: float  # GB/s
    load: float  # the largest part of it that was in use, 0 to 1


class Links(TypedDict):
    """The traffic of the platform's links."""

    edges: dict[str, Link]  # by name, such as "s0>u0"
    joint: list[Joint]


class _Kind(abc.ABC):
    """A kind of parameter of the C interface: its C type, and the values that are taken for it."""

    ctype: Any

    @abc.abstractmethod
    def made_of(self, value: Any) -> Any:
        """The value as ctypes takes it. Raises WrongType for another type, and for a value that
        ctypes would cut off."""


class _Name(_Kind):
    """A text."""

    ctype = ctypes.c_char_p

    def __init__(self, optional: bool) -> None:
        self._optional = optional

    def made_of(self, value: Any) -> bytes | None:
        if value is None and self._optional:
            return None
        return arguments.text("a name", value).encode()


class _Whole(_Kind):
    """A whole number."""

    def __init__(self, ctype: Any) -> None:
        self.ctype = ctype

    def made_of(self, value: Any) -> int:
        number = arguments.whole(value)
        if number is None or self.ctype(number).value != number:
            signed = "" if self.ctype(-1).value < 0 else " from 0"
            bits = 8 * ctypes.sizeof(self.ctype)
            raise WrongType(f"{value!r}: a whole number{signed} of at most {bits} bits")
        return number


class _Number(_Kind):
    """A number."""

    ctype = ctypes.c_double

    def made_of(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongType(f"{value!r}: a number")
        return float(value)


_NAME, _NAME_OR_NONE, _NUMBER = _Name(optional=False), _Name(optional=True), _Number()
_INT, _INT64 = _Whole(ctypes.c_int), _Whole(ctypes.c_int64)
_UINT64, _SIZE = _Whole(ctypes.c_uint64), _Whole(ctypes.c_size_t)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "configure": (ctypes.c_int, [_NAME, _NAME]),
    "reset": (ctypes.c_int, []),
    "fail": (ctypes.c_int, [_NAME_OR_NONE, _INT64, _INT, _INT64]),
    "calls": (ctypes.c_int64, [_NAME]),
    "cost_us": (ctypes.c_double, [_NAME]),
    "further_pages": (ctypes.c_int64, [_NAME]),
    "further_mappings": (ctypes.c_int64, [_NAME]),
    "reset_calls": (None, []),
    "price": (
        ctypes.c_int,
        [_NAME, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)],
    ),
    "table_price": (
        ctypes.c_int,
        [_NAME, _NAME, ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_double)],
    ),
    "mapping_price": (ctypes.c_int, [_NAME_OR_NONE, _NAME, ctypes.POINTER(ctypes.c_double)]),
    "now_ns": (ctypes.c_uint64, []),
    "tick": (None, [_UINT64]),
    "expect": (ctypes.c_int, [_INT]),
    "work": (ctypes.c_int, [_INT, _INT]),
    "set_link": (ctypes.c_int, [_NAME, _NAME, _NUMBER]),
    "set_link_at": (ctypes.c_int, [_UINT64, _NAME, _NAME, _NUMBER]),
    "fail_copy": (ctypes.c_int, [_NAME_OR_NONE, _NAME, _INT64, _INT, _INT64]),
    "stall_copy": (ctypes.c_int, [_NAME, _NAME, _INT64, _UINT64]),
    "corrupt_copy": (ctypes.c_int, [_NAME, _NAME, _INT64, _INT64]),
    "edges": (ctypes.c_size_t, [ctypes.c_char_p, _SIZE, _INT]),
    "watch_landings": (ctypes.c_int, [_UINT64, _SIZE]),
    "landings": (ctypes.c_int, [_UINT64, _SIZE, ctypes.c_void_p]),
    "landed": (ctypes.c_uint64, [_UINT64, _SIZE, _INT]),
    "place_host": (ctypes.c_int, [_UINT64, _SIZE, _INT]),
    "host_node": (ctypes.c_int, [_UINT64, _SIZE, ctypes.POINTER(ctypes.c_int)]),
    "last_message": (ctypes.c_size_t, [ctypes.c_char_p, _SIZE]),
    "ledger": (ctypes.c_size_t, [_INT, ctypes.c_char_p, _SIZE]),
    "violations": (ctypes.c_size_t, [ctypes.c_char_p, _SIZE, _INT]),
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
        function = getattr(library, f"simcuda_{name}")
        function.restype = result
        function.argtypes = [kind.ctype if isinstance(kind, _Kind) else kind for kind in taken]
    return library


def _call(name: str, *given: Any) -> Any:
    # Arguments are converted here. ctypes would put its own words around those of the error.
    ready = []
    for number, (kind, value) in enumerate(zip(_SIGNATURES[name][1], given, strict=True), 1):
        try:
            ready.append(kind.made_of(value) if isinstance(kind, _Kind) else value)
        except WrongType as error:
            raise WrongType(f"simcuda_{name}, argument {number}: {error}") from None
    return getattr(_library(), f"simcuda_{name}")(*ready)


def _json(read: Callable[[ctypes.Array[ctypes.c_char], int], int]) -> Any:
    room = 1 << 16
    while True:
        text = ctypes.create_string_buffer(room)
        length = read(text, room)
        if length < room:
            return json.loads(text.value)
        room = length + (1 << 12)


def _place(end: Any) -> Any:
    """A place of copies in the simulator's terms: "g3" for "cuda:3", "host" for "cpu"."""
    if isinstance(end, str):
        kind, _, number = end.partition(":")
        if kind == "cuda" and number.isdigit():
            return f"g{number}"
        if end == "cpu":
            return "host"
    return end


def _check(code: int, what: str) -> None:
    if code == 0:
        return
    why = ctypes.create_string_buffer(512)
    _library().simcuda_last_message(why, len(why))
    raise InvalidOption(f"the simulator refused {what} (CUresult {code}): {why.value.decode()}")


def configure(key: str, value: str | int) -> None:
    """Sets an option.

    Args:
        key: an option of simcuda.h, such as "memory".
        value: its value as text, such as "64MiB".

    Raises:
        InvalidOption: the option is unknown, its value is refused, or it is too late.
    """
    _check(_call("configure", key, str(value)), f"{key}={value!r}")


def reset() -> None:
    """Forgets devices, streams, books, faults and options. Nothing may use the simulator meanwhile.

    Raises:
        InvalidOption: something uses it.
    """
    global _resets
    code = _call("reset")
    if code != 0:
        raise InvalidOption(f"the simulator refused to be reset (CUresult {code})")
    _resets += 1


def resets() -> int:
    """How often this process has reset the simulator. A reset begins another simulated machine, so
    results from before it do not hold any more."""
    return _resets


def fail(symbol: str | None = None, k: int = 1, code: int = 2, times: int = 1) -> None:
    """Makes a later call fail.

    Args:
        symbol: a function of the driver; "*": any call counts; None: nothing fails any more.
        k: which call from now on, from 1.
        code: the CUresult: 2 is out-of-memory.
        times: how many calls in a row; -1: for good.

    Raises:
        InvalidOption: no such symbol or number.
    """
    result = _call("fail", symbol, k, code, times)
    if result != 0:
        raise InvalidOption(
            f"the simulator cannot fail call {k} of {symbol!r}, {times} times, with {code}: a call "
            'of the driver such as "cuMemMap", or "*"; k and times from 1 on, or times=-1'
        )


def _of_symbol(figure: str, symbol: str) -> float:
    found: float = _call(figure, symbol)
    if found < 0:
        raise InvalidOption(
            f"the simulator has no call {symbol!r}: one of the driver's, as cuMemMap, or *"
        )
    return found


def calls(symbol: str = "*") -> int:
    """The calls made since the last reset_calls().

    Args:
        symbol: of the driver; "*": all.

    Raises:
        InvalidOption: the simulator has no such call.
    """
    return int(_of_symbol("calls", symbol))


def cost_us(symbol: str = "*") -> float:
    """The modelled time of the calls made since the last reset_calls(), in microseconds.

    Args:
        symbol: of the driver; "*": all.

    Raises:
        InvalidOption: the simulator has no such call.
    """
    return float(_of_symbol("cost_us", symbol))


def cost_by_us(table: str, symbol: str) -> float:
    """The modelled time of a symbol's calls by a table of prices, whichever table is in use.

    Args:
        table: one of ``glake.trace.replay.COST_TABLES`` or of the cost file.
        symbol: of the driver.

    Raises:
        InvalidOption: no such table or call.
    """
    named = arguments.text("a table", table), arguments.text("a name", symbol)
    first, further, mapping = _price_by(*named)
    pages, mappings = _call("further_pages", symbol), _call("further_mappings", symbol)
    return calls(symbol) * first + int(pages) * further + int(mappings) * (mapping - further)


@functools.cache
def _price_by(table: str, symbol: str) -> tuple[float, float, float]:
    first, further, mapping = ctypes.c_double(), ctypes.c_double(), ctypes.c_double()
    result = _call("table_price", table, symbol, ctypes.byref(first), ctypes.byref(further))
    _check(result, f"to tell the price of {symbol} by {table}")
    result = _call("mapping_price", table, symbol, ctypes.byref(mapping))
    _check(result, f"to tell the price of a mapping of {symbol} by {table}")
    return first.value, further.value, mapping.value


def reset_calls() -> None:
    """Sets the counts and costs to zero."""
    _call("reset_calls")


def price_us(symbol: str) -> float:
    """The modelled time of one call, in microseconds.

    Args:
        symbol: of the driver.

    Raises:
        InvalidOption: the simulator has no such call.
    """
    first, further = ctypes.c_double(), ctypes.c_double()
    result = _call("price", symbol, ctypes.byref(first), ctypes.byref(further))
    _check(result, f"to tell the price of {symbol}")
    return first.value


def now_ns() -> int:
    """The virtual clock in nanoseconds."""
    return int(_call("now_ns"))


def tick(ticks: int = 1) -> None:
    """Lets host events pass, which `complete_after` counts.

    Args:
        ticks: how many.
    """
    _call("tick", ticks)


def ledger(device: Device = 0) -> dict[str, int]:
    """The objects that exist on a device: reservations, handles, mappings, accesses, events,
    streams, bytes.

    Args:
        device: 0, "cuda:0" or a torch.device.

    Raises:
        InvalidDevice: no GPU's number or name, or the simulator has no such GPU.
    """
    gpu = arguments.device_number(device)
    books: dict[str, int] = _json(lambda to, room: int(_call("ledger", gpu, to, room)))
    if not books:
        raise InvalidDevice(
            f"the simulator has no GPU {gpu}, or none was used yet: `glake info` lists them"
        )
    return books


def violations(clear: bool = False) -> list[Violation]:
    """The actions so far that a GPU leaves undefined.

    Args:
        clear: forget them.
    """
    found: list[Violation] = _json(lambda to, room: int(_call("violations", to, room, 0)))
    if arguments.flag("clear", clear) and found:
        _call("violations", None, 0, 1)
    return found


def set_link(source: str, target: str, rate: float, at_ns: int | None = None) -> None:
    """Sets a link's speed.

    Copies under way go on at the new speed. At 0 they stand still, or end with the CUresult of
    option `dead_link`.

    Args:
        source: a node of the platform's graph, as edges() names it: "g0" is GPU 0, "s0" a socket,
            "m0" that socket's memory, "u0" a PCIe switch, "N" the NVSwitch.
        target: the node at the link's other end.
        rate: GB/s.
        at_ns: the time on the virtual clock; None: now.

    Raises:
        InvalidOption: no such link or speed, or no device was used yet.
    """
    what = f"{rate} GB/s for link {source}>{target}"
    if at_ns is None:
        _check(_call("set_link", source, target, rate), what)
    else:
        _check(_call("set_link_at", at_ns, source, target, rate), what)


def fail_copy(
    source: str | None = None, target: str = "*", k: int = 1, code: int = 719, times: int = 1
) -> None:
    """Makes a later copy between two places fail. It writes nothing.

    A call that waits for the copy's event or stream returns the code. The context stays usable.

    Args:
        source: "cuda:3" (or "g3"), "cpu" (or "host"), "m0" for host memory of socket 0, or "*";
            None: no copy fails or stalls any more.
        target: likewise.
        k: which copy from now on, from 1.
        code: the CUresult.
        times: how many in a row; -1: for good.

    Raises:
        InvalidOption: no such place or number, or no device was used yet.
    """
    result = _call("fail_copy", _place(source), _place(target), k, code, times)
    _check(result, f"to fail copy {k} from {source} to {target}")


def stall_copy(source: str, target: str, k: int, ns: int) -> None:
    """Makes a later copy between two places start late.

    Args:
        source: as of fail_copy().
        target: likewise.
        k: which copy from now on, from 1.
        ns: nanoseconds that it is late.

    Raises:
        InvalidOption: as of fail_copy().
    """
    result = _call("stall_copy", _place(source), _place(target), k, ns)
    _check(result, f"to stall copy {k} from {source} to {target} by {ns} ns")


def corrupt_copy(source: str, target: str, k: int = 1, times: int = 1) -> None:
    """Makes a later copy between two places land with its first bit flipped.

    Args:
        source: as of fail_copy().
        target: likewise.
        k: which copy from now on, from 1.
        times: how many in a row; -1: for good.

    Raises:
        InvalidOption: as of fail_copy().
    """
    result = _call("corrupt_copy", _place(source), _place(target), k, times)
    _check(result, f"to corrupt copy {k} from {source} to {target}")


def edges(clear: bool = False) -> Links:
    """The traffic of each link since the last clear.

    Args:
        clear: count from 0 from now on.
    """
    loads: Links = _json(lambda to, room: int(_call("edges", to, room, 0)))
    if arguments.flag("clear", clear):
        _call("edges", None, 0, 1)
    return loads


def watch_landings(address: int, size: int) -> None:
    """Counts from now on how often copies write each byte of a range.

    Args:
        address: where it begins.
        size: bytes; 0: nothing is counted any more.

    Raises:
        InvalidOption: the range cannot be watched.
    """
    _check(_call("watch_landings", address, size), "to watch a range")


def landings(address: int, size: int) -> bytes:
    """How often copies wrote each byte of a watched range. The result has one byte for each, and
    255 means 255 or more.

    Args:
        address: where it begins.
        size: bytes.

    Raises:
        InvalidOption: part of the range is not watched.
    """
    bytes_ = arguments.size("a range", size)
    try:
        counts = ctypes.create_string_buffer(bytes_)
    except (OverflowError, MemoryError):
        raise InvalidOption(f"a range of {bytes_} bytes: more than this machine has") from None
    _check(_call("landings", address, len(counts), counts), "to tell of landings")
    return counts.raw


def landed(address: int, size: int, times: int = 1) -> int:
    """How many bytes of a watched range copies wrote `times` times.

    Args:
        address: where it begins.
        size: bytes.
        times: exactly so often; -1: more than once.

    Raises:
        InvalidOption: part of the range is not watched.
    """
    total = int(_call("landed", address, size, times))
    if total == 2**64 - 1:
        raise InvalidOption(f"[{address:#x}, +{size}) is not watched: see watch_landings()")
    return total


def place_host(address: int, size: int, node: int) -> None:
    """Places host memory on a NUMA node, which decides the routes of its copies.

    Nodes are the platform's `numa_nodes`. If it has none, socket S is node S.

    Args:
        address: where the memory begins.
        size: bytes.
        node: the node; -1: spread over all.

    Raises:
        InvalidOption: the platform has no such socket, or no device was used yet.
    """
    _check(_call("place_host", address, size, node), f"socket {node} for host memory")


def host_node(address: int, size: int) -> int:
    """The NUMA node of host memory. For a socket with several it is the first.

    Args:
        address: where the memory begins.
        size: bytes.

    Returns:
        The node; -1: spread over all; -2: the node of the device that a copy goes to or from.

    Raises:
        InvalidOption: no device was used yet.
    """
    node = ctypes.c_int()
    _check(_call("host_node", address, size, ctypes.byref(node)), "to tell a socket")
    return node.value


def expect_threads(count: int) -> None:
    """Says that threads will call thread_at_work(True). Time stands still until they have done so.

    Args:
        count: how many; a negative number takes expectations back.

    Raises:
        InvalidOption: no such number.
    """
    _check(_call("expect", count), f"to expect {count} threads")


def thread_at_work(at_work: bool, rank: int = 0) -> None:
    """Says whether this thread is at work. Time moves only while all threads at work wait in the
    driver (simcuda_work, simcuda.h).

    Args:
        at_work: whether the thread counts from now on.
        rank: threads of a lower rank go on first.

    Raises:
        InvalidOption: no such rank.
    """
    _check(_call("work", int(arguments.flag("at_work", at_work)), rank), "a thread at work")
