"""Writes a trace as a PyTorch memory snapshot, which pytorch.org/memory_viz opens.

A trace has no addresses. So blocks are laid out here, best fit in one unlimited segment. The
picture shows sizes, lifetimes, stacks and steps. It says nothing about fragmentation.
"""

from __future__ import annotations

import bisect
import os
import pickle
import re
from typing import Any

from glake.trace.format import Event, read_events

TAG_FRAME = "tag"
"""The file name of a frame for which the tag gives none."""

_BASE = 0x7F00_0000_0000
_UNIT = 512
_GRANULE = 2 << 20
_FRAME = re.compile(r"(?P<file>[^:]+):(?P<line>\d+):(?P<name>.*)")


def export(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Writes a trace as a snapshot with history on device 0. An event's time in us is its number.

    It takes about 1 KiB of memory for each event. Raises TraceError for a bad trace, and OSError.
    """
    snapshot = build(path)
    with open(out, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)


def build(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The snapshot that `export` writes, made of dicts, lists, strings and numbers."""
    layout = _Layout()
    frames: dict[str, list[dict[str, Any]]] = {}
    live: dict[int, tuple[int, Event]] = {}
    entries: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []

    def entry(action: str, time: int, address: int, of: Event) -> None:
        entries.append(_entry(action, time, address, of, frames))

    for number, event in enumerate(read_events(path)):
        if event.op == "a":
            address = layout.take(event.bytes)
            live[event.id] = (address, event)
            entry("alloc", number, address, event)
        elif event.op == "f":
            address, block = live.pop(event.id)
            layout.give_back(address, event.bytes)
            entry("free_requested", number, address, block)
            entry("free_completed", number, address, block)
        elif event.op == "s":
            name = f"ProfilerStep#{event.id}"
            steps.append({"name": name, "stage": "START", "time_us": number, "device": 0})
    segment = _segment(layout, live, frames)
    grown = Event("a", 0, segment["total_size"], 0, "", 0)
    first = _entry("segment_alloc", 0, _BASE, grown, frames)
    return {
        "segments": [segment],
        "device_traces": [[first, *entries]],
        "allocator_settings": {},
        "external_annotations": steps,
    }


def _entry(
    action: str, time: int, address: int, event: Event, frames: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": event.bytes,
        "stream": event.stream,
        "time_us": time,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": _frames(event.tag, frames),
    }


def _frames(tag: str, known: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A tag as a stack, the innermost frame first. Stacks are shared, which keeps the pickle
    small."""
    if tag not in known:
        known[tag] = []
        for text in reversed(tag.split(";")) if tag else ():
            match = _FRAME.fullmatch(text)
            file, line, name = (
                match.group("file", "line", "name") if match else (TAG_FRAME, "0", text)
            )
            known[tag].append({"filename": file, "line": int(line), "name": name})
    return known[tag]


def _segment(
    layout: _Layout,
    live: dict[int, tuple[int, Event]],
    frames: dict[str, list[dict[str, Any]]],
) -> dict[str, Any]:
    total = -(-(layout.top - _BASE) // _GRANULE) * _GRANULE
    blocks: list[dict[str, Any]] = []
    at = _BASE

    def add(size: int, requested: int, state: str, tag: str) -> None:
        stack = _frames(tag, frames)
        keys = ("address", "size", "requested_size", "state", "frames")
        blocks.append(dict(zip(keys, (at, size, requested, state, stack), strict=True)))

    for address, event in sorted(live.values(), key=lambda each: each[0]):
        if address > at:
            add(address - at, 0, "inactive", "")
            at = address
        size = _rounded(event.bytes)
        add(size, event.bytes, "active_allocated", event.tag)
        at += size
    if at < _BASE + total:
        add(_BASE + total - at, 0, "inactive", "")
    allocated = [block for block in blocks if block["state"] == "active_allocated"]
    return {
        "device": 0,
        "address": _BASE,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "allocated_size": sum(block["size"] for block in allocated),
        "active_size": sum(block["size"] for block in allocated),
        "requested_size": sum(block["requested_size"] for block in allocated),
        "blocks": blocks,
    }


def _rounded(size: int) -> int:
    return -(-size // _UNIT) * _UNIT


class _Layout:
    """Places blocks by best fit with coalescing, and grows at the end."""

    def __init__(self) -> None:
        self.top = _BASE
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}

    def take(self, size: int) -> int:
        size = _rounded(size)
        index = bisect.bisect_left(self._by_size, (size, 0))
        if index == len(self._by_size):
            # If the last hole reaches the end, the block grows into it.
            address = self._start_of_end.get(self.top, self.top)
            if address != self.top:
                self._remove(address)
            self.top = address + size
            return address
        hole, address = self._by_size[index]
        self._remove(address)
        if hole > size:
            self._add(address + size, hole - size)
        return address

    def give_back(self, address: int, size: int) -> None:
        size = _rounded(size)
        if address + size in self._size_at:
            size += self._remove(address + size)
        if address in self._start_of_end:
            start = self._start_of_end[address]
            size += self._remove(start)
            address = start
        self._add(address, size)

    def _add(self, address: int, size: int) -> None:
        bisect.insort(self._by_size, (size, address))
        self._size_at[address] = size
        self._start_of_end[address + size] = address

    def _remove(self, address: int) -> int:
        size = self._size_at.pop(address)
        del self._start_of_end[address + size]
        del self._by_size[bisect.bisect_left(self._by_size, (size, address))]
        return size
