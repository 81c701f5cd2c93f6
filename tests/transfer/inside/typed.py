"""What calls return has the keys and types that glake.typing says."""

import types
import typing
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

import numpy as np
import pytest

import glake
import glake.transfer
from glake.typing import Snapshot, TransferStats


def _misfits(value: Any, hint: Any, place: str = "") -> list[str]:
    """Where a value does not fit a type. Checks TypedDicts by key, lists and dicts by item."""
    origin, inner = get_origin(hint), get_args(hint)
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint)
        wrong = [f"{place} lacks {key}" for key in sorted(hint.__required_keys__ - value.keys())]
        wrong += [f"{place} has {key}" for key in sorted(value.keys() - hints.keys())]
        for key in value.keys() & hints.keys():
            wrong += _misfits(value[key], hints[key], f"{place}.{key}")
        return wrong
    if origin in (Union, types.UnionType, Mapping):  # Json: mypy checks it where it is made
        return []
    if origin is dict:
        return [
            line
            for key, each in value.items()
            for line in _misfits(key, inner[0], f"{place}'s keys")
            + _misfits(each, inner[1], f"{place}.{key}")
        ]
    if origin is list:
        return [line for each in value for line in _misfits(each, inner[0], f"{place}[]")]
    if origin is tuple:
        return [] if [type(each) for each in value] == list(inner) else [f"{place}: {value!r}"]
    return [] if type(value) is hint else [f"{place}: {value!r} is no {hint.__name__}"]


def test_statistics_of_copies_are_of_their_type() -> None:
    source = glake.transfer.pinned(16 << 20)
    with glake.empty(16 << 20) as target:
        glake.transfer.copy(target, source).wait()
        found = glake.transfer.stats()
        assert found["paths"]
        assert not _misfits(found, TransferStats)


def test_a_snapshot_is_of_its_type() -> None:
    glake.record_memory_history()
    try:
        with glake.tag("weights"), glake.empty(4 << 20):
            found = glake.snapshot()
    finally:
        glake.record_memory_history(None)
    assert found["segments"][0]["blocks"] and found["device_traces"][0]
    assert not _misfits(found, Snapshot)


def test_the_check_finds_what_does_not_fit() -> None:
    wrong = {
        "segments": [{"device": "0"}],
        "device_traces": [],
        "allocator_settings": {},
        "more": 1,
    }
    found = _misfits(wrong, Snapshot, "it")
    assert {
        "it lacks external_annotations",
        "it has more",
        "it.segments[].device: '0' is no int",
    } <= {*found}


def test_pinned_arrays_are_of_the_library_of_their_dtype() -> None:
    torch = pytest.importorskip("torch")
    assert type(glake.transfer.pinned(4, "float32")) is np.ndarray
    assert type(glake.transfer.pinned(4, torch.float32)) is torch.Tensor
