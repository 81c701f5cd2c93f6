"""Who holds memory at a moment: tagged blocks as a tree of frames, and by what they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Holder = tuple[str, int, int]
"""A tag, the bytes live under it, and their number of blocks (``Trace.holders``)."""

UNTAGGED = "(untagged)"

_DEEPEST = 16
_WIDEST = 24
_LEAST_SHARE = 0.002
_LONGEST_FRAME = 160

# By the first frame, the phase in which the block was allocated (docs/trace-format.md).
_ROLES = (
    ("parameters and buffers", re.compile(r"set-?up|init|build|model|weights?|param", re.I)),
    ("optimizer state", re.compile(r"optim", re.I)),
    ("gradients and backward's own", re.compile(r"backward|grad", re.I)),
    ("activations", re.compile(r"forward|recompute", re.I)),
)
OTHER_ROLE = "other"

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass
class Node:
    """A frame with everything allocated under it: bytes, blocks and the frames further in."""

    name: str
    bytes: int = 0
    blocks: int = 0
    children: list[Node] = field(default_factory=list)


def fold(frame: str) -> str:
    """A module path with its numbers made ``*``, so that a model's equal layers add up."""
    folded = _NUMBER.sub("*", frame)
    return folded if len(folded) <= _LONGEST_FRAME else folded[: _LONGEST_FRAME - 1] + "…"


def frames_of(tag: str) -> list[str]:
    """The frames of a tag, outermost first; the empty tag has one of its own."""
    return [fold(frame) for frame in tag.split(";") if frame] or [UNTAGGED]


def tree(holders: Iterable[Holder]) -> Node:
    """All holders under one nameless root, largest first. Frames past the 16th, what is less than
    0.2 % of all and what comes after the 24th of one parent are added up, so that the tree of any
    trace stays small."""
    root = Node("")
    index: dict[tuple[str, ...], Node] = {(): root}
    for tag, size, blocks in holders:
        path: tuple[str, ...] = ()
        frames = frames_of(tag)
        if len(frames) > _DEEPEST:
            frames = [*frames[: _DEEPEST - 1], "…"]
        root.bytes += size
        root.blocks += blocks
        for frame in frames:
            parent = index[path]
            path = (*path, frame)
            node = index.get(path)
            if node is None:
                node = index[path] = Node(frame)
                parent.children.append(node)
            node.bytes += size
            node.blocks += blocks
    _prune(root, _LEAST_SHARE * root.bytes)
    return root


def _prune(node: Node, least: float) -> None:
    node.children.sort(key=lambda each: (-each.bytes, each.name))
    kept = [each for each in node.children[:_WIDEST] if each.bytes >= least]
    rest = node.children[len(kept) :]
    if len(rest) > 1:
        blocks = sum(each.blocks for each in rest)
        kept.append(Node(f"({len(rest)} smaller)", sum(each.bytes for each in rest), blocks))
    else:
        kept += rest
    node.children = kept
    for each in kept:
        _prune(each, least)


def role_of(tag: str) -> str:
    """What a block is, from the phase its tag begins with; ``other`` if that says nothing."""
    phase = tag.partition(";")[0]
    for role, pattern in _ROLES:
        if pattern.match(phase):
            return role
    return OTHER_ROLE


def by_role(holders: Sequence[Holder]) -> list[tuple[str, int]]:
    """Bytes by role, largest first; nothing for a trace without tags."""
    if not any(tag for tag, _, _ in holders):
        return []
    sums: dict[str, int] = {}
    for tag, size, _ in holders:
        role = role_of(tag)
        sums[role] = sums.get(role, 0) + size
    return sorted(sums.items(), key=lambda each: -each[1])
