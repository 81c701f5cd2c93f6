"""The emulation: torch's CPU allocator on glake over the simulated GPU (GLAKE_DRIVER=sim).

All memory that torch's CPU allocator gives is in glake's simulated device memory: parameters,
gradients, activations, optimizer state. Tensors whose memory comes from elsewhere (from_numpy,
share_memory_, UntypedStorage(n)), and tensors made before the installation, stay outside.
covered_share() says how much is inside. A forked child has a copy of the live tensors. If they are
more than 2 GiB in all, it shares their pages instead, and sees the parent's changes. The child's
new tensors are in torch's own memory. The emulation is for tests, demos and planning, never for
production.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import multiprocessing
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import glake
from glake import _C, simcuda, units
from glake.allocator import adapter_build
from glake.allocator.buffer import is_block
from glake.config import Config
from glake.errors import GlakeError, InvalidOption

GRANULE = 2 << 20
ADDRESSES = 5  # addresses that the core reserves for each byte of a device (Heap::reserve)
_NOTHING = 0.0005  # a smaller share would be printed as 0.0 %
STATES = ("unopened", "glake", "torch", "forked", "exiting")


@dataclass(frozen=True)
class Counters:
    """Totals of this process: allocations, bytes from glake and from torch's own allocator, and
    refused frees."""

    state: str
    allocations: int
    glake_bytes: int
    torch_bytes: int
    failed_frees: int


@dataclass(frozen=True)
class Coverage:
    """The bytes of live CPU tensors: in glake's blocks (`inside`), and in other storages
    (`outside`)."""

    inside: int
    outside: int

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.inside + self.outside

    @property
    def share(self) -> float:
        """inside / (inside + outside); 1.0 when nothing is live."""
        return self.inside / self.total if self.total else 1.0


@functools.cache
def _adapter() -> ctypes.CDLL:
    adapter = ctypes.CDLL(str(adapter_build.build("emulation")))
    path, strict, text, capacity = ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
    adapter.glake_emulation_install.argtypes = [path, strict, text, capacity]
    adapter.glake_emulation_counters.argtypes = [ctypes.POINTER(ctypes.c_uint64)]
    adapter.glake_emulation_counters.restype = None
    return adapter


def install(settings: Config, strict: bool) -> None:
    """Puts glake under torch's CPU tensors for good. The driver opens at the first allocation.

    If the driver cannot be opened then, `strict` makes this an error. Otherwise glake warns, and
    torch's own memory is used. Raises InvalidOption, DriverAbsent, AdapterBuildError or GlakeError.
    """
    if settings.sim_phantom:
        raise InvalidOption(
            "GLAKE_SIM_PHANTOM=1 keeps the books only, and torch needs memory behind its tensors: "
            "unset it, or use `glake replay`, which is phantom"
        )
    own = settings.sim_machine is None  # processes of one machine must say the same size
    if own and settings.sim_memory is None and settings.driver.split(":")[0] == "sim":
        simcuda.configure("memory", default_memory())
    text = ctypes.create_string_buffer(1024)
    where = str(glake.library_path()).encode()
    if _adapter().glake_emulation_install(where, int(strict), text, len(text)) != 0:
        raise GlakeError(f"cannot install the emulation: {text.value.decode()}")


def default_memory() -> int:
    """The size of the simulated device, if GLAKE_SIM_MEMORY does not set it.

    It is half of the host memory that is available now, divided by the number of ranks that
    torchrun started here. It is a whole number of granules, from 64 MiB to 64 GiB. glake takes it
    from the host only as it grows. If `ulimit -v` is set, it is no more than the addresses allow.
    """
    ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    share = min(available_memory() // 2 // ranks, _available_addresses() // ADDRESSES)
    return min(max(share, 64 << 20), 64 << 30) // GRANULE * GRANULE


def _available_addresses() -> int:
    """The addresses that `ulimit -v` leaves, less 12 GiB: 6 GiB for the roundings of glake's three
    reservations, and 6 GiB for torch."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return max(0, limit - used - (12 << 30))


def available_memory() -> int:
    """The bytes that this machine, or this container, can still give its processes."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, max(0, int(text) - int(used.read_text())))
    return available


def counters() -> Counters:
    """The allocations so far, and the state: who serves allocations now (one of STATES)."""
    raw = (ctypes.c_uint64 * 5)()
    _adapter().glake_emulation_counters(raw)
    return Counters(STATES[raw[0]], *raw[1:])


def coverage() -> Coverage:
    """Measures the covered bytes now, by a walk over Python's objects. It takes milliseconds.

    Inside are the requested bytes of every live glake block, including activations that C++ holds.
    Outside are all storages of live CPU tensors that Python can reach and that are no glake block.
    Each counts once. Tensors outside glake that only C++ holds are not seen.
    """
    import torch

    outside: dict[int, int] = {}
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), torch.Tensor):
            continue
        try:
            storage = candidate.untyped_storage()
            if storage.device.type != "cpu":
                continue
            address, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError):  # no storage: sparse, fake or wrapped
            continue
        if size > 0 and not is_block(address):
            outside[address] = max(size, outside.get(address, 0))
    inside = 0
    if counters().state == "glake":
        inside = int(_C.stats(0)["requested_bytes.all.current"])
    return Coverage(inside, sum(outside.values()))


def covered_share() -> float:
    """The share of the live CPU tensors' bytes that glake holds now, from 0 to 1.

    The rest are the CPU storages outside glake that Python can reach.
    """
    return coverage().share


class CoverageReport:
    """Samples the coverage after optimizer steps 1, 2, 4, 8..., when most memory is live, and at
    exit."""

    def __init__(self) -> None:
        self.optimizer_steps = 0
        self.largest = Coverage(0, 0)
        self.process = os.getpid()

    def start(self) -> None:
        """Begins to sample, and prints the largest sample to stderr when the process exits."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._after_optimizer_step)
        atexit.register(self._print)

    def _after_optimizer_step(self, *_: Any) -> None:
        import torch

        if torch.compiler.is_compiling() or os.getpid() != self.process:
            return
        self.optimizer_steps += 1
        if self.optimizer_steps & (self.optimizer_steps - 1) == 0:
            self._sample()

    def _sample(self) -> None:
        now = coverage()
        if now.total > self.largest.total:
            self.largest = now

    def _print(self) -> None:
        if os.getpid() != self.process:
            return
        self._sample()
        found, trains = self.largest, self.optimizer_steps > 0
        # Only workers that train report. The launcher has almost no tensors, so it does not.
        worker = multiprocessing.parent_process() is not None
        if found.inside == 0 or not trains and (worker or found.share < _NOTHING):
            return
        sys.stderr.write(
            f"glake: emulation, no GPU: glake held {found.share:.1%} of the "
            f"{units.size(found.total)} of live CPU tensors\n"
        )
