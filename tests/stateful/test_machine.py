"""A Hypothesis state machine over glake._C on simulated memory with real bytes behind it.

After every step the allocator's own check passes, statistics equal the model's, and each live block
has the bytes that were written to it. So no two blocks share physical memory through any address.
Every run is the same, and a third as long unless TEST_FULL is 1 (make test-all). With
HYPOTHESIS_PROFILE=long it is random and longer.
"""

import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import glake
from glake import _C, errors, simcuda

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=150,
    stateful_step_count=50,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile("short", settings.get_profile("ci"), max_examples=50)
settings.register_profile("long", settings.get_profile("ci"), derandomize=False, max_examples=2000)

KIB, MIB, UNIT, GRANULE = 1 << 10, 1 << 20, 512, 2 << 20
OUT_OF_MEMORY, UNKNOWN = 2, 999
SYMBOLS = [
    "*",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuEventSynchronize",
]
SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, MIB),
    st.integers(MIB, 7 * MIB),
    st.integers(1, 5).map(lambda n: n * GRANULE),
)


STITCHED, VMM, LEGACY = range(3)
ACTIVE = 1
OUT_OF_MEMORY_STATUS, DRIVER_ERROR = 4, 8


class Pool(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


POOLS = [Pool(1, 0), Pool(0, 7)]


def library() -> ctypes.CDLL:
    """The library that glake._C is linked to, for calls that glake._C does not have."""
    lib = ctypes.CDLL(str(Path(glake.__file__).parent / "lib" / "libglake.so"))
    lib.glake_pool_malloc.restype = ctypes.c_void_p
    lib.glake_pool_malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, Pool]
    return lib


@dataclass
class Block:
    pointer: int
    size: int
    stream: int
    stamp: int
    recorded: set[int] = field(default_factory=set)
    guards: int = 0  # bytes of guards around it
    debug: bool = False
    held: int = 0  # bytes of the memory that it got

    def __post_init__(self) -> None:
        self.held = (self.size + self.guards + UNIT - 1) // UNIT * UNIT

    def units(self) -> Any:
        """One byte in each 512. Blocks share memory in whole units or not at all."""
        room = self.size if self.debug else self.held - self.guards
        return np.ctypeslib.as_array((ctypes.c_uint8 * room).from_address(self.pointer))[::UNIT]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.streams: list[int] = [0]
        self.stamp = 0
        self.armed = self.armed_ever = False
        self.freed: int | None = None
        self.pins: list[int] = []
        self.users = [0, 0]
        self.pooled = False
        self.exact = True  # a refusal means that memory is really full
        self.lib = library()

    @initialize(
        policy=st.sampled_from(["balanced", "compact"]),
        limit=st.sampled_from([12, 24]),
        budget=st.sampled_from(["1", "8"]),
        seed=st.integers(0, 3),
        debug=st.sampled_from(["none", "none", "none", "guard,poison,sync"]),
    )
    def start(self, policy: str, limit: int, budget: str, seed: int, debug: str) -> None:
        _C.shutdown()
        simcuda.reset()
        for key, value in {"memory": "64MiB", "devices": "1", "seed": str(seed)}.items():
            simcuda.configure(key, value)
        self.limit = limit * MIB
        self.debug = debug != "none"
        self.exact = not self.debug  # debug modes keep freed blocks, and make live ones longer
        options = {"policy": policy, "limit": str(self.limit), "view_budget": budget}
        options["debug"] = debug
        for key, value in (options | {"driver": "sim"}).items():
            _C.configure(key, value)
        _C.free(_C.malloc(1))
        self.driver = ctypes.CDLL(_C.driver_path())
        self.context = ctypes.c_void_p()
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0) == 0

    # Blocks.

    @rule(size=SIZES, which=st.integers(0, 5))
    def allocate(self, size: int, which: int) -> None:
        stream = self.streams[which % len(self.streams)]
        try:
            pointer = _C.malloc(size, 0, stream)
        except errors.OutOfMemory as error:
            assert self.armed or self.is_full(size), str(error)
            return
        except errors.DriverError:
            assert self.armed
            return
        self.born(pointer, size, stream, 1024 if self.debug else 0)

    def born(self, pointer: int, size: int, stream: int, guards: int = 0) -> Block:
        assert pointer % UNIT == 0
        assert _C.block_info(pointer) == (size, 0, stream)
        self.stamp = self.stamp % 250 + 1
        block = Block(pointer, size, stream, self.stamp, guards=guards, debug=self.debug)
        if self.debug:
            self.synchronize()
        block.units()[:] = block.stamp
        self.blocks.append(block)
        return block

    def synchronize(self) -> None:
        """Waits for the device. The host writes stamps in no stream's order, so a debug mode's work
        must have run before, even if its own wait was refused."""
        popped = ctypes.c_void_p()
        for call in (
            lambda: self.driver.cuCtxPushCurrent_v2(self.context),
            self.driver.cuCtxSynchronize,
            lambda: self.driver.cuCtxPopCurrent_v2(ctypes.byref(popped)),
        ):
            if call() != 0:
                simcuda.fail(None)
                self.armed = False
                assert call() == 0

    @rule(size=SIZES, which=st.integers(0, 5), kind=st.sampled_from([VMM, LEGACY]))
    def allocate_contiguous(self, size: int, which: int, kind: int) -> None:
        stream = self.streams[which % len(self.streams)]
        try:
            pointer = _C.malloc_contiguous(size, 0, stream, kind)
        except errors.OutOfMemory:
            return
        except errors.DriverError:
            assert self.armed
            return
        self.born(pointer, size, stream)

    # Private pools.

    @rule(size=SIZES, which=st.integers(0, 5), pool=st.integers(0, 1))
    def allocate_from_pool(self, size: int, which: int, pool: int) -> None:
        self.exact, self.pooled = False, True  # another pool may have what is missing
        stream = self.streams[which % len(self.streams)]
        pointer = self.lib.glake_pool_malloc(size, 0, stream, POOLS[pool])
        if pointer is None:
            code = self.lib.glake_last_error(None, 0)
            assert code == OUT_OF_MEMORY_STATUS or (self.armed and code == DRIVER_ERROR), code
            return
        self.born(pointer, size, stream)

    @rule(pool=st.integers(0, 1), more=st.booleans())
    def pool_users(self, pool: int, more: bool) -> None:
        self.exact, self.pooled = False, True
        if more:
            code = self.lib.glake_pool_retain(0, POOLS[pool])
        elif self.users[pool] == 0:
            return
        else:
            code = self.lib.glake_pool_release(0, POOLS[pool])
        assert code == 0 or (self.armed and code == DRIVER_ERROR)
        if code == 0:
            self.users[pool] += 1 if more else -1
        assert self.lib.glake_pool_uses(0, POOLS[pool]) == self.users[pool]

    @rule(pool=st.integers(0, 1))
    def empty_pool(self, pool: int) -> None:
        code = self.lib.glake_pool_empty_cache(0, POOLS[pool])
        assert code == 0 or (self.armed and code == DRIVER_ERROR)

    # Pins.

    @precondition(lambda self: self.blocks and len(self.pins) < 8)
    @rule(which=st.integers(0, 1000))
    def pin(self, which: int) -> None:
        block = self.blocks[which % len(self.blocks)]
        _C.pin(block.pointer)
        self.pins.append(block.pointer)

    @precondition(lambda self: self.pins)
    @rule(which=st.integers(0, 1000))
    def unpin(self, which: int) -> None:
        pointer = self.pins.pop(which % len(self.pins))
        _C.unpin(pointer)
        if pointer not in self.pins:
            with pytest.raises(errors.InvalidPointer):
                _C.unpin(pointer)

    @rule(size=st.integers(1, 5), tail=st.integers(0, UNIT * 3), which=st.integers(0, 5))
    def checker(self, size: int, tail: int, which: int) -> None:
        """Fills the device with equal blocks and frees every other one: holes to stitch."""
        blocks = len(self.blocks)
        for _ in range(self.limit // (size * MIB)):
            self.allocate(size * MIB - tail, which)
        for block in self.blocks[blocks::2]:
            self.blocks.remove(block)
            _C.free(block.pointer)

    @precondition(lambda self: self.blocks)
    @rule(which=st.integers(0, 1000), count=st.integers(1, 3))
    def free(self, which: int, count: int) -> None:
        for _ in range(min(count, len(self.blocks))):
            block = self.blocks.pop(which % len(self.blocks))
            _C.free(block.pointer)
            self.freed = block.pointer

    @precondition(lambda self: self.freed is not None)
    @rule()
    def free_twice(self) -> None:
        assert self.freed is not None
        if all(block.pointer != self.freed for block in self.blocks):
            with pytest.raises(errors.InvalidPointer):
                _C.free(self.freed)

    @precondition(lambda self: self.blocks)
    @rule(which=st.integers(0, 1000), offset=st.integers(1, 8 * MIB))
    def free_inside(self, which: int, offset: int) -> None:
        block = self.blocks[which % len(self.blocks)]
        with pytest.raises(errors.InvalidPointer):
            _C.free(block.pointer + 1 + offset % max(1, block.held - 1))

    # Streams.

    @precondition(lambda self: len(self.streams) < 6)
    @rule()
    def new_stream(self) -> None:
        stream, popped = ctypes.c_void_p(), ctypes.c_void_p()
        simcuda.fail(None)
        self.armed = False
        assert self.driver.cuCtxPushCurrent_v2(self.context) == 0
        assert self.driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        assert self.driver.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0
        assert stream.value is not None
        self.streams.append(stream.value)

    @precondition(lambda self: self.blocks)
    @rule(which=st.integers(0, 1000), streams=st.sets(st.integers(0, 5), min_size=1))
    def record(self, which: int, streams: set[int]) -> None:
        block = self.blocks[which % len(self.blocks)]
        for index in streams:
            _C.record_stream(block.pointer, self.streams[index % len(self.streams)])

    # The device.

    @rule()
    def empty_cache(self) -> None:
        try:
            _C.empty_cache(0)
        except errors.DriverError:
            assert self.armed

    @rule(
        symbol=st.sampled_from(SYMBOLS),
        k=st.integers(1, 12),
        code=st.sampled_from([OUT_OF_MEMORY, UNKNOWN]),
        times=st.sampled_from([1, 1, 2, -1]),
    )
    def fail_a_call(self, symbol: str, k: int, code: int, times: int) -> None:
        simcuda.fail(symbol, k, code, times)
        self.armed = self.armed_ever = True

    @precondition(lambda self: self.armed)
    @rule()
    def fail_no_more(self) -> None:
        simcuda.fail(None)
        self.armed = False

    # The invariants.

    def is_full(self, size: int) -> bool:
        """Whether neither whole free granules nor the limit has room. Only then may glake refuse.

        With more streams than one wait can name, glake may refuse earlier, so True is returned.
        """
        stats = _C.stats(0)
        room: int = self.limit - stats["glake.physical_bytes"] + stats["glake.whole_free_bytes"]
        if not self.exact or self.pins:
            return True
        room += stats["glake.contiguous_cached_bytes"]
        return len(self.streams) > 4 or room < (size + GRANULE - 1) // GRANULE * GRANULE

    @invariant()
    def books_balance(self) -> None:
        try:
            _C.check(0)
        except errors.DriverError:  # debug modes call the driver in check()
            assert self.armed and self.debug
        assert _C.findings() == ""
        stats = _C.stats(0)
        held = sum(block.held for block in self.blocks)
        assert stats["allocation.all.current"] == len(self.blocks)
        assert stats["allocated_bytes.all.current"] == held
        # PyTorch counts freed memory that waits for recorded streams as active and requested.
        waiting = stats["active.all.current"] - stats["allocation.all.current"]
        requested = sum(block.size for block in self.blocks)
        assert waiting >= 0 and stats["active_bytes.all.current"] >= held
        assert (stats["requested_bytes.all.current"] > requested) == (waiting > 0)
        assert stats["requested_bytes.all.current"] >= requested
        made, gone = stats["allocation.all.allocated"], stats["allocation.all.freed"]
        assert made - gone == len(self.blocks)
        physical = stats["glake.physical_bytes"]
        assert physical <= self.limit
        assert physical == simcuda.ledger(0)["used_bytes"]
        assert stats["glake.whole_free_bytes"] <= stats["glake.free_bytes"]
        assert stats["glake.free_bytes"] + held <= physical
        segments = _C.memory(0)
        blocks = [block for *_, inside, _ in segments for block in inside]
        shown = sum(segment[1] for segment in segments)
        assert shown == sum(block[1] for block in blocks)
        assert sum(block[1] for block in blocks if block[3] == ACTIVE) == held
        assert shown <= physical
        if not self.armed_ever:
            assert shown == physical == stats["reserved_bytes.all.current"]

    @invariant()
    def bytes_are_their_owners(self) -> None:
        for block in self.blocks:
            assert (block.units() == block.stamp).all(), f"{block} was written by another"

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        simcuda.fail(None)
        for block in self.blocks:
            _C.free(block.pointer)
        for pointer in self.pins:
            _C.unpin(pointer)
        _C.check(0)
        _C.shutdown()
        assert self.driver.cuDevicePrimaryCtxRelease_v2(0) == 0
        books = simcuda.ledger(0)
        for key in ("reservations", "handles", "mapped_granules", "used_bytes", "events"):
            assert books[key] == 0, (key, books)
        assert books["context_refs"] == 0
        assert simcuda.violations() == []
        simcuda.reset()


TestMachine = Machine.TestCase
TestMachine.settings = settings.get_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("TEST_FULL") == "1" else "short")
)
