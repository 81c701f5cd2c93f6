"""Who holds memory at a moment: tagged blocks as a tree of frames."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from glake.units import printable

Holder = tuple[str, int, int]
"""A tag, and the bytes and number of its live blocks (``Trace.holders``)."""

UNTAGGED = "(untagged)"

_DEEPEST = 16
_WIDEST = 24
_LEAST_SHARE = 0.002
_LONGEST_FRAME = 160

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass
class Node:
    """A frame with everything allocated under it: bytes, blocks and the frames further in."""

    name: str
    bytes: int = 0
    blocks: int = 0
    children: list[Node] = field(default_factory=list)


def fold(frame: str) -> str:
    """A module path with ``*`` in place of numbers, so that a model's equal layers add up. Control
    characters of terminals are left out."""
    folded = _NUMBER.sub("*", printable(frame))
    return folded if len(folded) <= _LONGEST_FRAME else folded[: _LONGEST_FRAME - 1] + "…"


def frames_of(tag: str) -> list[str]:
    """The frames of a tag, the outermost first. The empty tag has a frame of its own."""
    return [fold(frame) for frame in tag.split(";") if frame] or [UNTAGGED]


def tree(holders: Iterable[Holder]) -> Node:
    """All holders under one nameless root, the largest first. The tree of any trace stays small:
    frames after the 16th, parts below 0.2 % of the total, and children after the 24th are added
    up."""
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
