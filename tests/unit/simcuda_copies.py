"""Probes the simulator itself, in a process of its own: prints the rates found as JSON.

Usage: simcuda_copies.py PRESET. The copies are plain driver calls on simcuda's virtual clock; host
memory of a socket is chosen by the simulator's option, so it is started anew for each set.
"""

import ctypes
import dataclasses
import json
import sys
from collections.abc import Sequence

from glake import library_path, simcuda
from glake.platforms import load_platforms
from glake.transfer.topology.probe import Copy, probe

BYTES = 256 << 20
cuda = ctypes.CDLL(str(library_path().with_name("libsimcuda.so")))
Pointer = ctypes.c_void_p


def call(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)


class SimulatorCopier:
    def __init__(self, preset: str) -> None:
        self._preset = preset

    def _start(self, node: str, devices: set[int]) -> dict[int, Pointer]:
        simcuda.reset()
        for key, value in (("preset", self._preset), ("phantom", 1), ("host_node", node)):
            simcuda.configure(key, value)
        call("cuInit", 0)
        contexts = {}
        for device in devices:
            contexts[device] = Pointer()
            call("cuDevicePrimaryCtxRetain", ctypes.byref(contexts[device]), device)
        return contexts

    def rates(self, copies: Sequence[Copy]) -> list[float]:
        ends = [(copy.source, copy.target) for copy in copies]
        nodes = {end[1:] for pair in ends for end in pair if end[0] == "m"}
        assert len(nodes) <= 1  # one option for all host memory
        devices = {int(end[1:]) for pair in ends for end in pair if end[0] == "g"}
        contexts = self._start(next(iter(nodes), "0"), devices)
        running = []
        for source, target in ends:
            at = int((target if target[0] == "g" else source)[1:])
            memory = [self._memory(end, contexts) for end in (target, source)]
            call("cuCtxSetCurrent", contexts[at])
            stream, events = Pointer(), (Pointer(), Pointer())
            call("cuStreamCreate", ctypes.byref(stream), 1)
            for event in events:
                call("cuEventCreate", ctypes.byref(event), 0)
            running.append((at, memory, stream, events))
        for at, (to, origin), stream, (start, end) in running:
            call("cuCtxSetCurrent", contexts[at])
            call("cuEventRecord", start, stream)
            call("cuMemcpyAsync", to, origin, ctypes.c_size_t(BYTES), stream)
            call("cuEventRecord", end, stream)
        found = []
        for at, _, stream, (start, end) in running:
            call("cuCtxSetCurrent", contexts[at])
            call("cuStreamSynchronize", stream)
            milliseconds = ctypes.c_float()
            call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
            found.append(BYTES / (milliseconds.value * 1e6 - 8000))
        return found

    def _memory(self, end: str, contexts: dict[int, Pointer]) -> Pointer:
        address = Pointer()
        if end[0] == "m":
            call("cuCtxSetCurrent", next(iter(contexts.values())))
            call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(BYTES), 0)
        else:
            call("cuCtxSetCurrent", contexts[int(end[1:])])
            call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(BYTES))
        return address


if __name__ == "__main__":
    platform = load_platforms()[sys.argv[1]]
    low = tuple(dataclasses.replace(e, gb_per_s=e.gb_per_s * 0.4) for e in platform.edges)
    guess = dataclasses.replace(platform, edges=low, joint=())
    print(json.dumps(dict(probe(guess, SimulatorCopier(sys.argv[1])).rates)))
