"""Every option of glake: one typed table, set by GLAKE_* variables.

`read()` gives the options in use. A GLAKE_* variable that is not in the table is an error, so a
misspelt one is never silently ignored. A variable with an empty value counts as not set. At build
time tools/option_table.py generates two C++ tables from this one: that of the core (glake_options()
in glake.h) and that of the simulator (simcuda_configure()). It imports this module alone. So this
module may import only the standard library, glake.errors and glake.hints. In every locale a number
is digits with an optional decimal point (8, 0.9, .5).
"""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from glake.errors import InvalidOption, UnknownOption, WrongType
from glake.hints import nearest

PREFIX = "GLAKE_"
MOST_SIZE = 1 << 46  # bytes: the largest size that the core takes
GRANULE = 2 * 2**20
LEAST_CONTIGUOUS = 1 << 20  # bytes: smaller blocks would waste most of their 2 MiB
LEAST_FRACTION = 2.0**-23  # one granule of a device of 16 TiB; no device has more memory
_MOST_WHOLE = 2**63 - 1
DEFAULT_PRESET = "hgx_h100_h200"  # the simulator's platform
T = TypeVar("T")
Limit = float | int | None

_NUMBER = r"[0-9]*\.?[0-9]+"  # \d would take digits of all writing systems
UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Option:
    """One row of a table. `reader` says who acts on it: python, core, simulator or
    preload (libglake_intercept.so). `more` is a text that pages and headers show in addition to
    `meaning`. An option with `any_time` may change while the simulator runs."""

    name: str
    default: str
    parse: Callable[[str], Any]
    takes: str
    meaning: str
    reader: str = "python"
    more: str = ""
    any_time: bool = False

    def is_switch(self) -> bool:
        """Whether the option takes the words "true" and "false", and so True and False."""
        try:
            return bool(self.parse("true") == self.parse("1"))
        except ValueError:
            return False


def parse_bytes(text: str, zero: bool = False) -> int:
    """Bytes of "4096", "512MiB" or "1.5GiB". Raises ValueError for anything else, and for less than
    one byte. With `zero`, 0 is allowed."""
    match = re.fullmatch(rf"({_NUMBER})([A-Za-z]*)", text)
    if match is None or match[2] not in UNITS:
        raise ValueError('not a number of bytes, such as 4096 or "64MiB" (units: B to TiB)')
    value = float(match[1]) * UNITS[match[2]]
    if value < 1 and not (zero and value == 0):
        raise ValueError("not above 0 bytes")
    if value > MOST_SIZE:
        raise ValueError("more than 2^46 bytes (64 TiB)")
    return int(value)


def parse_limit(text: str) -> Limit:
    """None ("none" or empty), a fraction in (0, 1] ("0.9", "90%"), or bytes ("70GiB")."""
    if text in ("", "none"):
        return None
    percent = re.fullmatch(rf"({_NUMBER})%", text)
    plain = re.fullmatch(_NUMBER, text)
    fraction = float(percent[1]) / 100 if percent else float(text) if plain else 2.0
    if percent or fraction <= 1:
        if not 0 < fraction <= 1:
            raise ValueError("a fraction must be above 0 and at most 1")
        if fraction < LEAST_FRACTION:
            raise ValueError("less than one granule of 2MiB of any device (none has 16TiB)")
        return fraction
    size = parse_bytes(text)
    if size < GRANULE:
        raise ValueError("less than one granule of 2MiB")
    return size


def parse_contiguous(text: str) -> tuple[str, int] | None:
    """None ("none"), or the kind and the least bytes of blocks ("64MiB", "legacy:64MiB")."""
    if text == "none":
        return None
    kind, colon, size = text.rpartition(":")
    if colon and kind not in ("vmm", "legacy"):
        raise ValueError("the kind is not vmm or legacy")
    least = parse_bytes(size)
    if least < LEAST_CONTIGUOUS:
        raise ValueError("below 1MiB a driver allocation of its own would waste most of 2MiB")
    return kind or "vmm", least


@dataclass(frozen=True)
class Choice:
    """A parser that takes one of these words."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.words:
            raise ValueError("not one of them")
        return text


@dataclass(frozen=True)
class Modes:
    """A parser of a comma list of these words, or "none": those given, in this order."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> tuple[str, ...]:
        given = () if text == "none" else tuple(text.split(","))
        if any(word not in self.words for word in given):
            raise ValueError("not a list of them")
        return tuple(word for word in self.words if word in given)


@dataclass(frozen=True)
class Number:
    """A parser of a number from `low` to `high`."""

    low: float
    high: float

    def __call__(self, text: str) -> float:
        if re.fullmatch(_NUMBER, text) is None:
            raise ValueError("not a number")
        if not self.low <= float(text) <= self.high:
            raise ValueError(f"not from {self.low} to {self.high}")
        return float(text)


@dataclass(frozen=True)
class Whole:
    """A parser of a whole number from `low` to `high`, or of one of these words."""

    low: int
    high: int = _MOST_WHOLE
    words: tuple[str, ...] = ()

    def __call__(self, text: str) -> Any:
        if text in self.words:
            return text
        if re.fullmatch("-?[0-9]+", text) is None:
            raise ValueError("not a whole number")
        if not self.low <= int(text) <= self.high:
            raise ValueError(f"not from {self.low} to {self.high}")
        return int(text)


@dataclass(frozen=True)
class Size:
    """A parser of bytes. `nothing` is a word for 0. The least size is a granule or a byte."""

    granule: bool = False
    nothing: str = ""

    def __call__(self, text: str) -> int:
        if self.nothing and text == self.nothing:
            return 0
        size = parse_bytes(text)
        if self.granule and size < GRANULE:
            raise ValueError("less than one granule of 2MiB")
        return size


@dataclass(frozen=True)
class FileName:
    """A parser of a name of at most `most` letters, digits, _, - and ., which is not hidden."""

    most: int

    def __call__(self, text: str) -> str:
        if re.fullmatch(rf"[A-Za-z0-9_-][A-Za-z0-9_.-]{{0,{self.most - 1}}}", text) is None:
            raise ValueError("not such a name")
        return text


@dataclass(frozen=True)
class CallTimes:
    """A parser of pairs NAME=TIMES of a driver call and up to `most` times, joined by "+". Each
    time is below `below` microseconds. The simulator, not this parser, checks the names of calls.
    """

    most: int
    below: float

    def __call__(self, text: str) -> str:
        for pair in filter(None, text.split(",")):
            name, _, given = pair.partition("=")
            times = given.split("+")
            known = re.fullmatch("[A-Za-z0-9_]+", name) and len(times) <= self.most
            if not known or not all(map(self._takes, times)):
                raise ValueError("not such pairs")
        return text

    def _takes(self, time: str) -> bool:
        return re.fullmatch(_NUMBER, time) is not None and float(time) < self.below


@dataclass(frozen=True)
class OrNone(Generic[T]):
    """A parser of an option that need not be set. "" gives None."""

    parse: Callable[[str], T]

    def __call__(self, text: str) -> T | None:
        return self.parse(text) if text else None


def _choice(*words: str) -> Choice:
    return Choice(words)


_WORDS = {"off": "0", "no": "0", "false": "0", "on": "1", "yes": "1", "true": "1"}


def _switch(*more: str) -> Callable[[str], str]:
    """The values 0 and 1 with their usual words, and further named values."""
    parse = _choice("0", "1", *more)
    return lambda text: parse(_WORDS.get(text.lower(), text))


def parse_flag(text: str) -> bool:
    """True for "1" and its words, False for "0" and its words. Raises ValueError for other
    texts."""
    return _switch()(text) == "1"


DEBUG_MODES = ("guard", "poison", "trace", "sync")

# Each is a module of glake.integrations. "all" arms those that suit every job.
_OF_ALL = ("cupy", "deepspeed", "megatron", "memory_saver", "vllm")
INTEGRATIONS = (*_OF_ALL, "fsdp2")


def _integrations(text: str) -> tuple[str, ...]:
    """The names of "cupy,fsdp2", each once; () for "none"."""
    given = () if text == "none" else tuple(word.strip() for word in text.split(","))
    words = tuple(name for word in given for name in (_OF_ALL if word == "all" else (word,)))
    for word in words:
        if word not in INTEGRATIONS:
            raise ValueError(f"there is no integration {word!r}{nearest_integration(word)}")
    return tuple(dict.fromkeys(words))


def nearest_integration(word: str) -> str:
    """A text for errors: for "megatorn" " (did you mean megatron?)", and "" if no name is near."""
    if word == "none":
        return " (none stands alone: leave it out, or the other names)"
    near = nearest(word.lower(), (*INTEGRATIONS, "all", "none"))
    return f" (did you mean {near}?)" if near else ""


def known_integrations(text: str) -> tuple[str, list[str]]:
    """GLAKE_INTEGRATIONS without the words that name no integration, and those words."""
    words = [] if text == "none" else [word.strip() for word in text.split(",")]
    known = [word for word in words if word in (*INTEGRATIONS, "all")]
    return ",".join(known) or "none", [word for word in words if word not in known]


def parse_driver(text: str) -> str:
    """A driver's name or path. A path must have a "/", so that a misspelt name is refused."""
    preset = text.startswith("sim:") and text != "sim:"
    if text not in ("cuda", "sim") and not preset and "/" not in text:
        raise ValueError("not one of them")
    return text


def _option(
    default: str,
    parse: Callable[[str], T],
    takes: str,
    meaning: str,
    reader: str = "core",
    more: str = "",
    any_time: bool = False,
) -> T:
    # The field's static type is that of the parsed value. Its row of the table is the field's
    # metadata.
    row = {"option": (default, parse, takes, meaning, reader, more, any_time)}
    return dataclasses.field(default=parse(default), metadata=row)


PATH = OrNone(str)
_SIM = "simulator"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options in force. Field `sim_seed` is the variable GLAKE_SIM_SEED."""

    allocator: str = _option(
        "0", _switch("basic"), "0, 1 or basic",
        "put PyTorch's memory in glake at `import torch`; basic: through the C plug-in", "python",
    )  # fmt: skip
    strict: bool = _option(
        "0", parse_flag, "0 or 1",
        "1: failing to install the allocator is an error; 0: warn and keep PyTorch's own", "python",
    )  # fmt: skip
    host_allocator: bool = _option(
        "1", parse_flag, "0 or 1",
        "1: pinned memory for torch's CUDA tensors is glake's too, with the CUDA adapter", "python",
    )  # fmt: skip
    integrations: tuple[str, ...] = _option(
        "all", _integrations, f"none, or a comma list of all, {', '.join(INTEGRATIONS)}",
        "packages that glake hooks when they are imported (docs/integrations.md)", "python",
    )  # fmt: skip
    private_pools: str = _option(
        "stitched", _choice("stitched", "legacy"), "stitched or legacy",
        "memory of CUDA graphs and MemPools; legacy: cudaMalloc's, with the CUDA adapter", "python",
    )  # fmt: skip
    jit_dir: str | None = _option(
        "", PATH, "a directory",
        "where code compiled against the installed torch is kept (default: the user's cache)",
        "python",
    )  # fmt: skip
    relays: str | None = _option(
        "", OrNone(_choice("all", "lent", "own")), "all, lent or own",
        "GPUs that copies may go over: all visible, those the relay service lends, or only those "
        "this process uses (default: lent if a launcher says that this is one of several "
        "processes, else all)", "python",
    )  # fmt: skip
    intercept: str = _option(
        "1", _choice("0", "1", "report"), "0, 1 or report",
        "where libglake_intercept.so is preloaded, 1: a program's large copies are carried; "
        "report: and the sum of them is printed at exit (docs/intercept.md)", "preload",
    )  # fmt: skip
    intercept_min: int = _option(
        "4MiB", Size(), 'bytes ("4MiB")', "least bytes of a copy that is carried", "preload"
    )
    intercept_json: str | None = _option(
        "", PATH, "a path", "add what was carried to this file at exit, a line of JSON", "preload"
    )
    intercept_topology: str | None = _option(
        "", PATH, "a platforms file, or its text",
        "how the GPUs are joined (`glake run --intercept` finds it)", "preload",
    )  # fmt: skip
    intercept_visible: str | None = _option(
        "", PATH, "as CUDA_VISIBLE_DEVICES",
        "the GPUs that intercept_topology is of: with others nothing is carried", "preload",
    )  # fmt: skip
    driver: str = _option(
        "cuda", parse_driver, "cuda, sim[:preset] or the path of a driver library (with a /)",
        "the CUDA driver to use; nothing falls back to the simulator",
    )  # fmt: skip
    policy: str = _option(
        "balanced", _choice("balanced", "compact"), "balanced or compact",
        "what comes first: balanced grows while the limit has room, compact stitches",
    )  # fmt: skip
    limit: Limit = _option(
        "none", parse_limit,
        "none, a fraction (0.9, 90%) of at least 0.00000012 or bytes of at least 2MiB (70GiB)",
        "most physical memory that glake holds on each device",
    )  # fmt: skip
    headroom: int = _option(
        "none", Size(nothing="none"), 'none, or bytes ("4GiB")',
        "memory of each device that glake leaves free for others",
    )  # fmt: skip
    cooperate: bool = _option(
        "0", parse_flag, "0 or 1",
        "1: this user's processes on a GPU give idle memory back when one of them runs out",
    )  # fmt: skip
    copy_order: str = _option(
        "enqueued", _choice("enqueued", "held"), "enqueued or held",
        "transfers in a stream's order: all is enqueued, or the stream waits for glake's threads",
    )  # fmt: skip
    peers: str = _option(
        "none", _choice("none", "all"), "none or all",
        "devices that may reach each device's memory from the start",
    )  # fmt: skip
    view_budget: float = _option(
        "8", Number(1, 1000), "a number from 1 to 1000",
        "most bytes kept mapped in stitched views, as a multiple of the limit",
    )  # fmt: skip
    contiguous: tuple[str, int] | None = _option(
        "none", parse_contiguous, 'none, or bytes ("64MiB", "vmm:64MiB", "legacy:64MiB")',
        "blocks from this size on are one driver allocation each, as NCCL, RDMA and IPC want them",
    )  # fmt: skip
    debug: tuple[str, ...] = _option(
        "none", Modes(DEBUG_MODES), f"none, or a comma list of {', '.join(DEBUG_MODES)}",
        "find writes outside blocks and after a free (docs/debugging.md)",
    )  # fmt: skip
    trace: str | None = _option(
        "", PATH, "a path", "record every allocation and free in this file; %p in it: process id"
    )  # fmt: skip
    sim_preset: str | None = _option(
        "", PATH, "a name in the platforms file",
        f"platform to simulate (default: {DEFAULT_PRESET})", _SIM,
    )  # fmt: skip
    sim_platforms: str | None = _option(
        "", PATH, "a path",
        "platforms file to use (default: platforms.json beside the simulator's library)", _SIM,
    )  # fmt: skip
    sim_costs: str | None = _option(
        "", PATH, "a device in the cost file, or published",
        "modelled cost of driver calls (default: as the cost file says)", _SIM,
    )  # fmt: skip
    sim_cost_file: str | None = _option(
        "", PATH, "a path",
        "cost file to use (default: costs.json beside the simulator's library)", _SIM,
    )  # fmt: skip
    sim_devices: int | None = _option(
        "", OrNone(Whole(1, 16)), "1 to 16", "devices (default: the preset's)", _SIM
    )
    sim_memory: int | None = _option(
        "", OrNone(Size(granule=True)), 'bytes of 2MiB and more ("1GiB")',
        "memory of each device", _SIM,
        "The default is 1GiB; with phantom=1 it is 80GiB, and under PyTorch's CPU tensors, without "
        "a shared machine, what the host can spare.",
    )  # fmt: skip
    sim_context_memory: int = _option(
        "0", Size(granule=True, nothing="0"), '0, or bytes of 2MiB and more ("616MiB")',
        "memory that each CUDA context takes of its device", _SIM,
        "On a GPU a context and its loaded code take hundreds of MiB.",
    )  # fmt: skip
    sim_phantom: bool = _option(
        "0", parse_flag, "0 or 1", "1: keep the books only, no memory behind the mappings", _SIM
    )
    sim_host_node: int | str = _option(
        "0", Whole(0, 63, ("local", "interleave")), "a socket's number, local or interleave",
        "socket whose memory host buffers are in", _SIM,
        "local: the socket of the copy's device.",
    )  # fmt: skip
    sim_seed: int = _option("0", Whole(0), "a whole number", "seed of the scheduler", _SIM)
    sim_schedule: str = _option(
        "lazy", _choice("lazy", "threaded"), "lazy or threaded",
        "lazy: stream work runs as late as is legal; threaded: a thread per stream", _SIM,
        "lazy takes an order by the seed; threaded is for race detectors.",
    )  # fmt: skip
    sim_completion: str = _option(
        "instant", _choice("instant", "polled"), "instant or polled",
        "how a waiting thread learns that work is done: woken, or asking and sleeping as on a GPU",
        _SIM,
        "It concerns threads that wait with a deadline. With polled, which needs schedule=lazy, a "
        "query takes its modelled cost, and a sleep what simcuda_sleep says.",
    )  # fmt: skip
    sim_driver_lock: bool = _option(
        "0", parse_flag, "0 or 1",
        "1: calls that free or unpin wait for all work and keep others' copies out", _SIM,
        "As was seen with real drivers, calls that free or unpin memory, load code, open contexts "
        "or peers wait for all work under way, and block calls that enqueue work meanwhile. "
        "cuMemAlloc, and calls that pin memory or make streams and events, block them for their "
        "own time. cuModuleUnload only waits.",
    )  # fmt: skip
    sim_sticky_errors: bool = _option(
        "0", parse_flag, "0 or 1", "1: work that fails ends its GPU's contexts, as CUDA documents",
        _SIM,
        "What was enqueued on them does nothing, and every later call on them returns the error "
        "until the last release of the primary context. 0: the error is told once.",
    )  # fmt: skip
    sim_call_time: bool = _option(
        "0", parse_flag, "0 or 1", "1: calls that enqueue work take their time on the clock", _SIM,
        "With driver_lock=1, calls that block such calls take their own time too. 0: the time is "
        "only added up.",
        any_time=True,
    )  # fmt: skip
    sim_call_lock: str = _option(
        "context", _choice("context", "none"), "context or none",
        "which calls of other threads a call that takes time on the clock waits for", _SIM,
        "context: those into the same context, as nobody promises that they run side by side.",
    )  # fmt: skip
    sim_pcie_peers: str = _option(
        "socket", _choice("socket", "switch", "none"), "socket, switch or none",
        "which GPUs without NVLink may access each other's memory", _SIM,
        "socket: those under one socket. switch: those under one PCIe switch. none: no GPUs, as on "
        "boards and in virtual machines whose driver allows no peer access over PCIe.",
    )  # fmt: skip
    sim_visible_devices: bool = _option(
        "0", parse_flag, "0 or 1", "1: CUDA_VISIBLE_DEVICES hides GPUs of the simulated machine",
        _SIM,
    )  # fmt: skip
    sim_pace: int = _option(
        "0", Whole(0, 1000000), "a whole number to 1000000",
        "real nanoseconds to one of the clock that all processes of a shared machine share "
        "(0: each has its own, which runs by itself)", _SIM,
        "With a pace they share the machine's links, too.",
    )  # fmt: skip
    sim_machine: str | None = _option(
        "", OrNone(FileName(64)), "a name of letters, digits, _, - and .",
        "machine that several processes share (default: private)", _SIM,
    )  # fmt: skip
    sim_machine_dir: str | None = _option(
        "", PATH, "a folder", "where a shared machine's memory is (default: /dev/shm)", _SIM,
        "It is a sparse file of 64 TiB, which tmpfs and XFS hold and ext4 does not.",
    )  # fmt: skip
    sim_complete_after: int | str = _option(
        "auto", Whole(-1, words=("auto",)), "auto, -1 (never) or a count of ticks",
        "when enqueued work is complete, in phantom mode", _SIM,
        "K: what is enqueued at tick t is complete at tick t + K. -1: only once the host waits for "
        "it. auto: by the schedule.",
        any_time=True,
    )  # fmt: skip
    sim_call_us: str | None = _option(
        "", OrNone(CallTimes(3, 1e9)), '"cuMemMap=2+1" pairs',
        "modelled cost of driver calls in microseconds", _SIM,
        "first+further+mapping: of a 2 MiB page, of each further page (default: 0) and of each "
        "further mapping (default: as a further page). They win over the cost table.",
        any_time=True,
    )  # fmt: skip
    sim_call_delay_us: str | None = _option(
        "", OrNone(CallTimes(1, 1e9)), '"cuMemMap=10000" pairs',
        "real delay of driver calls in microseconds", _SIM,
        any_time=True,
    )  # fmt: skip
    # Options of simcuda's own tests and calibration, which users rarely need.
    sim_reuse_handles: bool = _option(
        "0", parse_flag, "0 or 1",
        "1: a new stream may have a destroyed one's handle, as a driver does", _SIM,
    )  # fmt: skip
    sim_batch_small_ns: int = _option(
        "2400", Whole(0, 2**40), "nanoseconds from 0",
        "what each copy of less than 28 KiB adds to a cuMemcpyBatchAsync", _SIM,
        "The default was published for an H100.",
    )  # fmt: skip
    sim_batch_large_ns: int = _option(
        "100", Whole(0, 2**40), "nanoseconds from 0",
        "what each copy of 28 KiB and more adds to a cuMemcpyBatchAsync", _SIM,
        "The default was published for an H100.",
    )  # fmt: skip
    sim_dead_link: int = _option(
        "0", Whole(0, 99999), "a CUresult, or 0",
        "error with which copies over a link at 0 GB/s end "
        "(0: they stand still until the link has a rate again)", _SIM,
        any_time=True,
    )  # fmt: skip
    sim_max_maps: int | None = _option(
        "", OrNone(Whole(64)), "at least 64",
        "kernel mappings to allow (default: vm.max_map_count)", _SIM,
        "Beyond 7/8 of them calls return CUDA_ERROR_MAP_FAILED.",
    )  # fmt: skip


OPTIONS: dict[str, Option] = {
    field.name.upper(): Option(field.name.upper(), *field.metadata["option"])
    for field in dataclasses.fields(Config)
}


def lookup(name: str) -> Option:
    """The row called `name`, with or without GLAKE_, in upper or lower case. Raises
    UnknownOption."""
    key = name.upper().removeprefix(PREFIX)
    if key in OPTIONS:
        return OPTIONS[key]
    near = nearest(key, OPTIONS)
    hint = f"did you mean {PREFIX}{near}?" if near else "`glake info --options` lists them"
    raise UnknownOption(f"glake has no option {PREFIX}{key}; {hint}")


def parse(name: str, text: str) -> Any:
    """The value that `text` gives option `name`; empty: its default. Raises UnknownOption or
    InvalidOption."""
    option = lookup(name)
    try:
        return option.parse(text or option.default)
    except ValueError as error:
        reason = f"{PREFIX}{option.name}={text!r}: {error}; it takes {option.takes}"
        raise InvalidOption(reason) from None


def read(environ: Mapping[str, str] | None = None) -> Config:
    """The options that the environment's GLAKE_* variables give. The others have their defaults.

    Raises UnknownOption for a variable that is not in the table, InvalidOption for a value that the
    option does not take, and WrongType if `environ` is no mapping of strings.
    """
    environ = os.environ if environ is None else environ
    if not isinstance(environ, Mapping):
        raise WrongType(f"environ is a mapping, such as os.environ, not {environ!r}")
    for name, text in environ.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise WrongType(f"environ has strings alone, not {name!r}: {text!r}")
    names = sorted(name for name in environ if name.startswith(PREFIX))
    given = {lookup(name).name.lower(): parse(name, environ[name]) for name in names}
    settings = Config(**given)
    if settings.sim_phantom and settings.debug:
        raise InvalidOption(
            f"{PREFIX}DEBUG reads memory back, {PREFIX}SIM_PHANTOM=1 keeps none: set one of them"
        )
    return settings


def variables(settings: Mapping[str, str | None]) -> dict[str, str]:
    """The GLAKE_* variables for options that are given by name. A value of None leaves an option
    out. Checks each value."""
    found: dict[str, str] = {}
    for name, text in settings.items():
        if text is not None:
            parse(name, text)
            found[PREFIX + lookup(name).name] = text
    return found
