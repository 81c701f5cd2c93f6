"""The subjects of the benchmark: glake's engine, a plain driver copy, and GLake's equal shares. All
are timed in the same way.

All copies of a case begin at one moment of the virtual clock, each in its own stream. A copy ends
when an event behind it in that stream is reached. The clock does not contain the host time of
driver calls, which is modelled. The time of the calling thread's calls is added, and a later copy
of the thread waits for the calls before it. If copies are enqueued whole (option copy_order), calls
go on while the first chunks flow. Then each call takes its time on the clock, in every thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glake import _C, config, simcuda
from glake.transfer.baselines import shared_paths
from glake.transfer.bench.cases import LOCAL, Case
from glake.transfer.bench.machine import Machine
from glake.transfer.place import ends
from glake.typing import PathRefusal

_SLOTS, _LANES = 4, 2  # each relay of equal shares has 4 buffers, and 2 streams in and 2 out
_LEAST_CHUNK, _MOST_CHUNK, _CHUNKS = 256 << 10, 4 << 20, 16
_GRAIN = 4096  # bytes: GLake rounds its parts to pages
_PAGES_NODE, _STRIPED_NODE = -1, -2  # csrc/plan/plan.h


@dataclass(frozen=True)
class Ends:
    """The memory of a copy, its GPUs (-1: host memory), and its stream, which has a number."""

    dst: int
    src: int
    to: int
    of: int
    size: int
    number: int

    @property
    def gpu(self) -> int:
        """The GPU of the copy's stream: the source, or the destination if the source is host
        memory."""
        return self.of if self.of >= 0 else self.to

    def stream(self, machine: Machine) -> int:
        """The copy's own stream."""
        return machine.stream(self.gpu, f"copy {self.number}")


@dataclass
class Outcome:
    """Nanoseconds from the call to the end of each copy, and the paths that they took."""

    times: list[float]
    paths: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[PathRefusal] = field(default_factory=list)
    relayed: bool = False  # by glake: whether a part went over another GPU
    calls_us: float = 0.0  # by glake: the time of its driver calls in all threads

    @property
    def total_ns(self) -> float:
        """The time until the last copy ends."""
        return max(self.times)


Subject = Callable[[Machine, Case, Sequence[Ends]], Outcome]


def prepared(machine: Machine, case: Case, size: int) -> list[Ends]:
    """The memory of the case's copies, placed as the case says."""
    found: list[Ends] = []
    for number, (src, dst) in enumerate(case.copies):
        to, of = _gpu(dst), _gpu(src)
        own = to if to >= 0 else of
        memory = [
            machine.device_buffer(gpu, f"{side} {number}")
            if gpu >= 0
            else machine.host_buffer(f"{side} {number}", size, own, case.host)
            for gpu, side in ((to, "to"), (of, "of"))
        ]
        # Copies of one stream may write the same memory.
        found += [Ends(memory[0], memory[1], to, of, size, number)] * case.queued
    return found


def _gpu(place: str) -> int:
    return int(place.removeprefix("cuda:")) if place != "cpu" else -1


def _timed(
    machine: Machine,
    copies: Sequence[Ends],
    start: Callable[[Ends], tuple[float, list[int]]],
) -> list[float]:
    """Starts all copies, and returns the time of each. `start` starts one copy. It returns the time
    of its driver calls in us, and the events at the copy's end."""
    base = machine.record(copies[0].gpu, machine.stream(copies[0].gpu, "clock"), "begin")
    machine.synchronize(base)
    submitted = 0.0
    ended = []
    simcuda.thread_at_work(True)  # the clock stands still until all have started
    try:
        for copy in copies:
            cost, events = start(copy)
            submitted += cost * 1e3
            ended.append((submitted, events))
        for _, events in ended:
            for event in events:
                machine.synchronize(event)
    finally:
        simcuda.thread_at_work(False)
    return [
        before + max(machine.nanoseconds(base, event) for event in events)
        for before, events in ended
    ]


def ours(machine: Machine, case: Case, copies: Sequence[Ends], at_once: bool = False) -> Outcome:
    """Copies by glake's engine, which is open. `at_once`: one call begins them all."""
    ids: list[int] = []
    on_clock = config.read().copy_order == "enqueued"  # then calls take time on the clock

    def request(copy: Ends) -> tuple[Any, int, int, list[tuple[int, int]], int]:
        parts = np.array([copy.dst, copy.src, copy.size], np.uint64)
        return parts, copy.to, copy.of, [(copy.gpu, copy.stream(machine))], 0

    def start(copy: Ends) -> tuple[float, list[int]]:
        stream = copy.stream(machine)
        before = simcuda.cost_us()
        simcuda.configure("call_time", int(on_clock))
        if not at_once:
            ids.append(_C.copy_start(*request(copy)))
        elif not ids:
            _C.copy_start_all([request(each) for each in copies], ids)
        simcuda.configure("call_time", 0)
        cost = 0.0 if on_clock else simcuda.cost_us() - before
        return cost, [machine.record(copy.gpu, stream, f"end {copy.number}")]

    spent = simcuda.cost_us()
    outcome = Outcome(_timed(machine, copies, start))
    outcome.calls_us = simcuda.cost_us() - spent
    for each, copy, ns in zip(ids, copies, outcome.times, strict=True):
        _C.copy_wait(each)
        told = _C.copy_result(each)
        _C.copy_release(each)
        if told["paths"]:
            outcome.relayed = outcome.relayed or told["relayed"]
            outcome.paths += [dict(path) for path in told["paths"] if path["bytes"]]
            outcome.refusals += told["refusals"]
        else:
            _plain_path(outcome, case, copy, ns)
    outcome.refusals = list({each["path"]: each for each in outcome.refusals}.values())
    return outcome


def _plain_path(outcome: Outcome, case: Case, copy: Ends, ns: float) -> None:
    """Records the path of a plain copy, and why the plan's paths with relays were not taken."""
    rate = round(copy.size / ns, 3)
    outcome.paths.append({"path": _name(copy), "bytes": copy.size, "rate": rate, "plain": True})
    node = _STRIPED_NODE if case.host != "pages" else _PAGES_NODE
    if case.host == LOCAL:
        node = _local_node(copy)
    plan = _C.transfer_explain(copy.to, copy.of, node, copy.size)
    outcome.refusals += plan["refusals"]
    for path in plan["paths"]:
        if path["path"].count(">") > 1:
            reason = f"a plain copy of {copy.size} bytes is expected to be done sooner"
            outcome.refusals.append({"path": path["path"], "reason": reason})


def _name(copy: Ends) -> str:
    return ">".join("cpu" if gpu < 0 else f"cuda:{gpu}" for gpu in (copy.of, copy.to))


def _local_node(copy: Ends) -> int:
    if copy.of >= 0 and copy.to >= 0:
        return 0
    return max(0, simcuda.host_node(copy.src if copy.of < 0 else copy.dst, 1))


def plain(machine: Machine, case: Case, copies: Sequence[Ends]) -> Outcome:
    """Copies by one driver copy each."""

    def start(copy: Ends) -> tuple[float, list[int]]:
        stream = copy.stream(machine)
        before = simcuda.cost_us()
        machine.copy(copy.dst, copy.src, copy.size, copy.gpu, stream, copy.to, copy.of)
        cost = simcuda.cost_us() - before
        return cost, [machine.record(copy.gpu, stream, f"end {copy.number}")]

    return Outcome(_timed(machine, copies, start))


class EqualShares:
    """Copies as GLake does: equal parts over the GPU's own link and over each NVLink peer of
    another index pair.

    Parts go in chunks. Each relay has four buffers, two streams in and two out. GLake has a thread
    for each path, so only one call is charged, as for a plain copy. GLake's calls to its server,
    which it makes for every copy, are left out.
    """

    def __init__(self, machine: Machine, graph: Any) -> None:
        self._machine, self._graph = machine, graph

    def __call__(self, machine: Machine, case: Case, copies: Sequence[Ends]) -> Outcome:
        """Copies."""
        relays = [
            shared_paths(self._graph, *ends(self._graph, src, dst, case.host))
            for src, dst in case.copies
        ]

        price = simcuda.price_us("cuMemcpyAsync")

        def start(copy: Ends) -> tuple[float, list[int]]:
            return price, self._start(copy, relays[copy.number])

        return Outcome(_timed(machine, copies, start))

    def _start(self, copy: Ends, relays: list[int | None]) -> list[int]:
        """Enqueues the copy in its stream: it begins when the stream comes to it, and the stream's
        later work waits for it."""
        stream = copy.stream(self._machine)
        begun = self._machine.record(copy.gpu, stream, f"begun {copy.number}")
        events = self._paths(copy, relays, begun)
        for event in events:
            self._machine.after(copy.gpu, stream, event)
        return events

    def _paths(self, copy: Ends, relays: list[int | None], begun: int) -> list[int]:
        part = copy.size // len(relays) // _GRAIN * _GRAIN
        bounds = [*(i * part for i in range(len(relays))), copy.size]
        events = []
        for relay, (begin, end) in zip(relays, itertools.pairwise(bounds), strict=True):
            if begin < end and len(relays) == 1 and relay is None:
                events += self._whole(copy)
            elif begin < end:
                events += self._part(copy, relay, begin, end, begun)
        return events

    def _whole(self, copy: Ends) -> list[int]:
        stream = copy.stream(self._machine)
        self._machine.copy(copy.dst, copy.src, copy.size, copy.gpu, stream, copy.to, copy.of)
        return [self._machine.record(copy.gpu, stream, f"end {copy.number}")]

    def _part(self, copy: Ends, relay: int | None, begin: int, end: int, begun: int) -> list[int]:
        """Copies one path's part in chunks. The part over the GPU's own link goes in chunks too,
        because copies under way share a link equally, and one long copy would get less than the two
        copies of a relay."""
        machine, direct = self._machine, relay is None
        gpu = copy.gpu if relay is None else relay
        name = f"part {copy.number} g{gpu}"
        chunk = min(max((end - begin) // _CHUNKS, _LEAST_CHUNK), _MOST_CHUNK)
        slots = 0 if direct else machine.device_buffer(gpu, name, _SLOTS * _MOST_CHUNK)
        # If the source is a GPU, its copy engine writes into the buffer.
        first = copy.of if copy.of >= 0 else gpu
        ended: dict[int, int] = {}
        # The first chunk is half as long. Otherwise both streams would start copies, and wait, at
        # the same time.
        starts = [begin, *range(begin + chunk // 2, end, chunk), end]
        for number, (at, stop) in enumerate(itertools.pairwise(starts)):
            turn, lane = number % _SLOTS, number % _LANES
            onward = machine.stream(gpu, f"{name} out {lane}")
            dst, src, length = copy.dst + at, copy.src + at, stop - at
            if direct:
                if number < _LANES:
                    machine.after(gpu, onward, begun)
                machine.copy(dst, src, length, gpu, onward, copy.to, copy.of)
            else:
                slot = slots + turn * _MOST_CHUNK
                into = machine.stream(first, f"{name} in {lane}")
                if number < _LANES:
                    machine.after(first, into, begun)
                if turn in ended:  # wait until the buffer is empty again
                    machine.after(first, into, ended[turn])
                machine.copy(slot, src, length, first, into, gpu, copy.of)
                machine.after(gpu, onward, machine.record(first, into, f"{name} arrived {turn}"))
                machine.copy(dst, slot, length, gpu, onward, copy.to, gpu)
            ended[turn] = machine.record(gpu, onward, f"{name} left {turn}")
        return list(ended.values())
