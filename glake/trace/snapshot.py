"""A PyTorch memory snapshot with history. Its parts are checked when they are read.

The form is that of torch.cuda.memory._snapshot(), described in PyTorch's documentation and in the
type hints of torch/cuda/memory.py.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

from glake.errors import ConvertError
from glake.trace import plain_pickle
from glake.trace.format import MAX_BYTES, MAX_TAG, clean_tag
from glake.trace.history import Entry
from glake.trace.memory_viz import TAG_FRAME

_NOT_USER_CODE = ("<frozen ", "/torch/nn/modules/module.py", "/runpy.py")
_PACKAGES = ("site-packages/", "dist-packages/", "/pytorch/")
_PYTHON = re.compile(r".*\.(py|pyx|ipynb)|<.*>")
_MOST_FRAMES = 512
_GIVEN_BACK = ("segment_free", "segment_unmap")
# Operators, and functions of the backward pass, by their C++ names.
_OPERATOR = re.compile(r"\bat::_ops::(?P<op>\w+)::(?:call|redispatch)\b")
_BACKWARD = re.compile(r"\bautograd::generated::(?P<op>\w+)::apply\b")
_PROFILER_STEP = re.compile(r"ProfilerStep#(?P<number>\d{1,18})")
_OPTIMIZER_STEP = "Optimizer.step#"
_ACTIONS = {"alloc": "alloc", "free_requested": "free", "free_completed": "completed"}


def _get(holder: Any, key: str, kind: type, where: str, default: Any = None) -> Any:
    """A field of a dict of unknown shape. Raises ConvertError, which names the field, if it is not
    of `kind`."""
    if not isinstance(holder, dict):
        raise ConvertError(f"{where}: {type(holder).__name__}, where a dict belongs")
    value = holder.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = "missing" if value is None else f"{str(value)[:40]!r}, not {kind.__name__}"
        raise ConvertError(f"{where}.{key}: {found}")
    return value


def _size(holder: Any, key: str, where: str) -> int:
    value: int = _get(holder, key, int, where)
    if not 0 < value <= MAX_BYTES:
        reason = "is negative" if value < 0 else "is no size of a block"
        raise ConvertError(f"{where}.{key}: {value} {reason}")
    return value


class _Tags:
    """Makes tags of stacks. Blocks of a snapshot share stacks, so each stack is made a text only
    once."""

    def __init__(self) -> None:
        self._by_stack: dict[int, str] = {}
        self._by_frame: dict[tuple[str, int, str], tuple[str, bool]] = {}

    def of(self, holder: dict[str, Any], where: str) -> str:
        frames = holder.get("frames") or []
        if not isinstance(frames, list):
            raise ConvertError(f"{where}.frames: {type(frames).__name__}, not list")
        # The list lives as long as the snapshot, so no other object gets its id.
        if id(frames) not in self._by_stack:
            self._by_stack[id(frames)] = self._stack(frames, where)
        stack = self._by_stack[id(frames)]
        name = holder.get("user_metadata")
        if not isinstance(name, str) or not name:
            return stack
        return clean_tag(f"{name};{stack}" if stack else name)

    def _stack(self, frames: list[Any], where: str) -> str:
        shown = [self._frame(frame, where) for frame in frames[:_MOST_FRAMES]]
        texts = [text for text, named in shown if named] or [text for text, _ in shown[:1]]
        # An operator's call and its redispatch count as one.
        texts = [text for text, _ in itertools.groupby(texts)]
        # A snapshot has the innermost frame first. Frames are kept from the front while there is
        # room.
        kept, room = [], MAX_TAG - len("...;")
        for text in texts:
            room -= len(text.encode()) + 1
            if room < 0:
                kept.append("...")
                break
            kept.append(text)
        return clean_tag(";".join(reversed(kept)))

    def _frame(self, frame: Any, where: str) -> tuple[str, bool]:
        """A frame's text, and whether it tells the user something."""
        file = _get(frame, "filename", str, f"{where}.frames")
        line = _get(frame, "line", int, f"{where}.frames")
        name = _get(frame, "name", str, f"{where}.frames")
        key = (file, line, name)
        if key not in self._by_frame:
            text, named = _frame_text(*key)
            self._by_frame[key] = (clean_tag(text.replace(";", ",")), named)
        return self._by_frame[key]


def _frame_text(file: str, line: int, name: str) -> tuple[str, bool]:
    """FILE:LINE:FUNCTION of Python or an operator's name, and whether a tag should have it. A tag
    should have the user's own Python, operators, and frames that glake's own export made of a
    tag."""
    if file == TAG_FRAME:
        return name, True
    base = os.path.basename(file)
    if not _PYTHON.fullmatch(base):
        operator, backward = _OPERATOR.search(name), _BACKWARD.search(name)
        if operator:
            return f"aten.{operator['op']}", True
        return (backward["op"], True) if backward else (name, False)
    library = any(part + "torch/" in file for part in _PACKAGES)
    others = library or any(part in file for part in _NOT_USER_CODE)
    return f"{base}:{line}:{name}", not others


def _has_history(trace: list[Any]) -> bool:
    # A device that was never used may still have an entry for the snapshot itself.
    return any(not isinstance(each, dict) or each.get("action") != "snapshot" for each in trace)


class Snapshot:
    """One device of a snapshot. Its parts are checked when they are read."""

    def __init__(self, path: str, device: int | None):
        self.tags = _Tags()
        data = plain_pickle.load(path)
        if not isinstance(data, dict) or not isinstance(data.get("device_traces"), list):
            raise ConvertError(
                "device_traces: missing; this is no snapshot with history. Record one "
                "with torch.cuda.memory._record_memory_history(max_entries=...) before the job, "
                "then torch.cuda.memory._dump_snapshot(FILE)"
            )
        self.segments: list[Any] = _get(data, "segments", list, "snapshot", [])
        self.annotations: list[Any] = _get(data, "external_annotations", list, "snapshot", [])
        self.device = self._choose(data["device_traces"], device)
        self.events: list[Any] = data["device_traces"][self.device]

    def _choose(self, traces: list[Any], device: int | None) -> int:
        for number, trace in enumerate(traces):
            if not isinstance(trace, list):
                raise ConvertError(f"device_traces[{number}]: not a list")
        with_history = [number for number, trace in enumerate(traces) if _has_history(trace)]
        if device is not None:
            if device in with_history:
                return device
            has = ", ".join(map(str, with_history)) or "none"
            raise ConvertError(f"device_traces: no history of device {device}; has: {has}")
        if not with_history:
            raise ConvertError(
                "device_traces: no device has events; was _record_memory_history() on?"
            )
        if len(with_history) > 1:
            numbers = ", ".join(map(str, with_history))
            raise ConvertError(
                f"device_traces: devices {numbers} have history; choose one with --device"
            )
        return with_history[0]

    def entries(self) -> Iterator[Entry]:
        """Allocations, frees with their completion, and the profiler's steps, in order."""
        steps = self._steps()
        for number, entry in enumerate(self.events):
            where = f"device_traces[{self.device}][{number}]"
            action = _ACTIONS.get(_get(entry, "action", str, where))
            if action is None:
                continue
            while steps and steps[-1][0] <= _get(entry, "time_us", int, where, 0):
                yield Entry("step", steps.pop()[1])
            address = _get(entry, "addr", int, where)
            size = _size(entry, "size", where)
            stream = _get(entry, "stream", int, where, 0)
            tag = self.tags.of(entry, where) if action == "alloc" else ""
            yield Entry(action, address, size, stream, tag)

    def given_back(self) -> int:
        """How often memory went back to the driver."""
        return sum(entry.get("action") in _GIVEN_BACK for entry in self.events)

    def _steps(self) -> list[tuple[int, int]]:
        """(time, number) of the beginning of each step, the last one first. The steps are those
        that torch.profiler marked. If there are none, they begin at the ends of the first
        optimizer's steps, as glake itself would mark them."""
        profiled: list[tuple[int, int]] = []
        optimized: list[int] = []
        optimizer: str | None = None
        for number, mark in enumerate(self.annotations):
            where = f"external_annotations[{number}]"
            name = _get(mark, "name", str, where, "")
            stage = mark.get("stage")
            match = _PROFILER_STEP.fullmatch(name)
            if match and stage == "START":
                profiled.append((_get(mark, "time_us", int, where), int(match["number"])))
            elif name.startswith(_OPTIMIZER_STEP) and stage == "END":
                optimizer = optimizer or name
                if name == optimizer:
                    optimized.append(_get(mark, "time_us", int, where))
        steps = profiled or [(time, step) for step, time in enumerate(sorted(optimized))]
        return sorted(steps, reverse=True)

    def held_at_the_end(self) -> dict[int, Entry]:
        """The blocks that the program held when the snapshot was taken, by address."""
        held = {}
        for number, segment in enumerate(self.segments):
            where = f"segments[{number}]"
            if _get(segment, "device", int, where, 0) != self.device:
                continue
            stream = _get(segment, "stream", int, where, 0)
            address = _get(segment, "address", int, where, 0)
            for index, block in enumerate(_get(segment, "blocks", list, where)):
                at = f"{where}.blocks[{index}]"
                size = _size(block, "size", at)
                # Older snapshots do not contain the blocks' own addresses.
                address = _get(block, "address", int, at, address)
                if block.get("state") == "active_allocated":
                    if block.get("requested_size"):
                        size = _size(block, "requested_size", at)
                    held[address] = Entry("alloc", address, size, stream, self.tags.of(block, at))
                address += _size(block, "size", at)
        return held
