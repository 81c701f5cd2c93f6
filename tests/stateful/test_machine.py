"""A Hypothesis state machine over glake._C on simulated memory with real bytes behind it.

After every step: the allocator's own check, statistics equal to the model's, and each live block's
bytes still those written to it, so that no two blocks share physical memory through any address.
HYPOTHESIS_PROFILE=long runs more, at random; the default, "ci", is the same run every time.
"""

import ctypes
import os
from dataclasses import dataclass, field
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

from glake import _C, errors, simcuda

settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=200,
    stateful_step_count=50,
    suppress_health_check=list(HealthCheck),
)
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


@dataclass
class Block:
    pointer: int
    size: int
    stream: int
    stamp: int
    recorded: set[int] = field(default_factory=set)

    @property
    def held(self) -> int:
        return (self.size + UNIT - 1) // UNIT * UNIT

    def units(self) -> Any:
        """The first word of each 512 bytes: blocks share memory in whole units or not at all."""
        words = (ctypes.c_uint32 * (self.held // 4)).from_address(self.pointer)
        return np.ctypeslib.as_array(words)[:: UNIT // 4]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.streams: list[int] = [0]
        self.stamp = 0
        self.armed = False
        self.freed: int | None = None

    @initialize(
        policy=st.sampled_from(["balanced", "compact"]),
        limit=st.sampled_from([12, 24]),
        budget=st.sampled_from(["1", "8"]),
        seed=st.integers(0, 3),
    )
    def start(self, policy: str, limit: int, budget: str, seed: int) -> None:
        _C.shutdown()
        simcuda.reset()
        for key, value in {"memory": "64MiB", "devices": "1", "seed": str(seed)}.items():
            simcuda.configure(key, value)
        self.limit = limit * MIB
        options = {"policy": policy, "limit": str(self.limit), "view_budget": budget}
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
        assert pointer % UNIT == 0
        assert _C.block_info(pointer) == (size, 0, stream)
        self.stamp += 1
        block = Block(pointer, size, stream, self.stamp)
        block.units()[:] = block.stamp
        self.blocks.append(block)

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
        self.armed = True

    @precondition(lambda self: self.armed)
    @rule()
    def fail_no_more(self) -> None:
        simcuda.fail(None)
        self.armed = False

    # What must hold.

    def is_full(self, size: int) -> bool:
        """Neither whole free granules nor the limit have room: the only excuse for a refusal.

        With more streams than one wait can name the rule is not so simple.
        """
        stats = _C.stats(0)
        room: int = self.limit - stats["glake.physical_bytes"] + stats["glake.whole_free_bytes"]
        return len(self.streams) > 4 or room < (size + GRANULE - 1) // GRANULE * GRANULE

    @invariant()
    def books_balance(self) -> None:
        _C.check(0)
        stats = _C.stats(0)
        held = sum(block.held for block in self.blocks)
        assert stats["allocation.all.current"] == len(self.blocks)
        assert stats["allocated_bytes.all.current"] == held
        assert stats["requested_bytes.all.current"] == sum(b.size for b in self.blocks)
        made, gone = stats["allocation.all.allocated"], stats["allocation.all.freed"]
        assert made - gone == len(self.blocks)
        physical = stats["glake.physical_bytes"]
        assert physical <= self.limit
        assert physical == simcuda.ledger(0)["used_bytes"]
        assert stats["glake.whole_free_bytes"] <= stats["glake.free_bytes"]
        assert stats["glake.free_bytes"] + held <= physical

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
TestMachine.settings = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
