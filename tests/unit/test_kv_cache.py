"""glake.KVCache: sequences that grow in place, on the simulated driver."""

from __future__ import annotations

import copy
import gc
import itertools
import random
from collections.abc import Iterator

import pytest
import torch

import glake
from glake import _C, errors
from glake.allocator.kv_cache import KVCache
from glake.transfer.engine import open_engine

PAGE = 2 << 20
LAYOUTS = ("tokens", "layers")


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    _C.shutdown()
    for name, value in (("driver", "sim"), ("limit", "96MiB")):
        _C.configure(name, value)
    yield
    gc.collect()
    assert live() == 0
    end_engine()
    _C.shutdown()
    for name in ("driver", "limit"):
        _C.configure(name, "")


def end_engine() -> None:
    if (engine := open_engine()) is not None:
        engine.close()


def live() -> int:
    return int(_C.stats()["allocated_bytes.all.current"])


def cache(layout: str = "tokens", **changes: int) -> KVCache:
    """3 layers, 5 heads of 64: 7,680 bytes a token, which do not divide a page."""
    shape = {"layers": 3, "heads": 5, "head_dim": 64, "tokens": 4000, "sequences": 6, **changes}
    return glake.KVCache(dtype=torch.float32, layout=layout, **shape)  # type: ignore[arg-type]


def write(kv: KVCache, sequence: int, first: int, last: int, value: int) -> None:
    """Each token has a value of its own in each layer, for keys and values."""
    for layer in range(kv.layers):
        for of, sign in ((kv.keys, 1), (kv.values, -1)):
            tokens = torch.arange(first, last, dtype=kv.dtype)[:, None, None]
            of(layer)[sequence, first:last] = sign * (tokens + 10_000 * value + layer / 8)


def holds(kv: KVCache, sequence: int, first: int, last: int, value: int) -> bool:
    for layer in range(kv.layers):
        for of, sign in ((kv.keys, 1), (kv.values, -1)):
            tokens = torch.arange(first, last, dtype=kv.dtype)[:, None, None]
            wanted = sign * (tokens + 10_000 * value + layer / 8)
            found = of(layer)[sequence, first:last]
            if not torch.equal(found, wanted.expand_as(found)):
                return False
    return True


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequences_take_memory_as_they_grow(layout: str) -> None:
    kv = cache(layout)
    assert live() == 0
    one = kv.add(10)
    least = PAGE if layout == "tokens" else 6 * PAGE
    assert live() == least == kv.backed
    write(kv, one, 0, 10, 1)
    kv.grow(one, 1500)
    write(kv, one, 10, 1500, 1)
    two = kv.add()
    kv.grow(two, 700)
    write(kv, two, 0, 700, 2)
    assert holds(kv, one, 0, 1500, 1) and holds(kv, two, 0, 700, 2)
    assert kv.keys(0).shape == (6, 4000, 5, 64) and kv.keys(0).stride(-1) == 1
    kv.cut(one, 600)
    kv.remove(two)
    kv.grow(one, 1200)
    assert holds(kv, one, 0, 600, 1) and kv.length(one) == 1200 and len(kv) == 1
    rows = -(-1200 * 7680 // PAGE) if layout == "tokens" else 6
    assert kv.backed == rows * PAGE == live()


def test_growing_within_a_page_makes_no_call() -> None:
    kv = cache()
    one = kv.add(1)
    calls = _C.stats()["glake.driver_calls"]
    for tokens in range(2, PAGE // 7680 // 2):
        kv.grow(one, tokens)
    kv.cut(one, 1)
    assert kv.add(0) != one
    kv.remove(one)
    again = kv.add(100)
    assert again == one  # and its page is still mapped
    assert _C.stats()["glake.driver_calls"] == calls


@pytest.mark.parametrize("layout", LAYOUTS)
def test_forks_share_whole_pages(layout: str) -> None:
    kv = cache(layout)
    one = kv.add(2000)
    write(kv, one, 0, 2000, 1)
    alone = live()
    two, three = kv.fork(one), kv.fork(one, 1990)
    least = 1 if layout == "tokens" else 6
    assert live() == alone + 2 * least * PAGE  # the last page of each
    for fork, tokens in ((two, 2000), (three, 1990)):
        kv.grow(fork, 2100)
        write(kv, fork, tokens, 2100, fork + 1)
    kv.grow(one, 2100)
    write(kv, one, 2000, 2100, 1)
    assert holds(kv, one, 0, 2100, 1)
    assert holds(kv, two, 0, 2000, 1) and holds(kv, two, 2000, 2100, two + 1)
    assert holds(kv, three, 0, 1990, 1) and holds(kv, three, 1990, 2100, three + 1)
    kv.remove(one)
    assert holds(kv, two, 0, 2000, 1) and holds(kv, three, 0, 1990, 1)
    kv.remove(three)
    assert holds(kv, two, 0, 2000, 1) and kv.shared == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_into_the_shared_beginning_writes_nothing_shared(layout: str) -> None:
    kv = cache(layout)
    one = kv.add(2500)
    write(kv, one, 0, 2500, 1)
    two = kv.fork(one)
    for sequence, left in ((two, 300), (one, 1001)):
        kv.cut(sequence, left)
        kv.grow(sequence, 2400)
        write(kv, sequence, left, 2400, 5 + sequence)
    assert holds(kv, two, 0, 300, 1) and holds(kv, two, 300, 2400, 5 + two)
    assert holds(kv, one, 0, 1001, 1) and holds(kv, one, 1001, 2400, 5 + one)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_view_has_a_sequences_own_tokens(layout: str) -> None:
    kv = cache(layout)
    one, two = kv.add(3), kv.add(700)
    write(kv, two, 0, 700, 2)
    for layer in range(kv.layers):
        keys, values = kv.view(two, layer)
        assert keys.data_ptr() == kv.keys(layer)[two].data_ptr()
        assert torch.equal(keys, kv.keys(layer)[two, :700])
        assert torch.equal(copy.deepcopy(values), kv.values(layer)[two, :700])
    kv.cut(one, 0)
    assert kv.view(one, 0)[0].shape == (0, 5, 64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_not_shared_any_more_is_not_copied(layout: str) -> None:
    kv = cache(layout)
    one = kv.add(2000)
    write(kv, one, 0, 2000, 1)
    two = kv.fork(one)
    kv.remove(one)
    kv.cut(two, 100)
    with glake.empty(96 * 2**20 - live()):  # there is no room for a copy
        kv.grow(two, 101)
    assert holds(kv, two, 0, 100, 1)


def test_it_ends() -> None:
    with cache() as kv:
        kv.offload(kv.add(3000))
    assert len(kv) == 0 == kv.offloaded
    with cache() as kv:
        kv.add(100)
        keys = kv.keys(0)
        with pytest.raises(errors.InvalidPointer, match="held by 1 arrays"):
            kv.free()
        assert kv.length(0) == 100
        del keys
    assert live() == 0
    with pytest.raises(errors.InvalidPointer):
        kv.buffer.back()


def test_no_room_changes_nothing() -> None:
    kv = cache()
    one = kv.add(4000)
    write(kv, one, 0, 4000, 1)
    with glake.empty("62MiB"):
        with pytest.raises(errors.OutOfMemory):
            kv.add(4000)
        assert len(kv) == 1
        two = kv.add(10)
        with pytest.raises(errors.OutOfMemory):
            kv.grow(two, 4000)
        assert kv.length(two) == 10
    kv.grow(two, 2000)
    fork = kv.fork(one)
    assert holds(kv, fork, 0, 4000, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sequence_goes_to_the_host_and_comes_back(layout: str) -> None:
    kv = cache(layout)
    one, two = kv.add(3001), kv.add(900)
    write(kv, one, 0, 3001, 1)
    write(kv, two, 0, 900, 2)
    address, before = kv.view(one, 2)[1].data_ptr(), live()
    sent = kv.offload(one)
    assert sent.result().bytes == 3001 * 7680 == kv.offloaded
    assert kv.offload(one) is sent and kv.length(one) == 3001
    assert live() == kv.backed < before
    with glake.empty(80 << 20, stream=0) as block:  # others have the memory meanwhile
        assert block.nbytes == 80 << 20
        with pytest.raises(errors.OutOfMemory):
            kv.load(one)
        assert kv.offloaded and holds(kv, two, 0, 900, 2)
    kv.load(one)
    kv.load(one)
    assert kv.offloaded == 0 and kv.view(one, 2)[1].data_ptr() == address
    assert holds(kv, one, 0, 3001, 1) and holds(kv, two, 0, 900, 2)
    kv.grow(one, 3500)
    write(kv, one, 3001, 3500, 3)
    assert holds(kv, one, 0, 3001, 1) and live() == kv.backed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shared_pages_stay_when_one_sequence_is_offloaded(layout: str) -> None:
    kv = cache(layout, tokens=3000)
    one = kv.add(2000)
    write(kv, one, 0, 2000, 1)
    two = kv.fork(one)
    kv.grow(two, 2600)
    write(kv, two, 2000, 2600, 2)
    shared = kv.shared
    kv.offload(two)
    assert kv.offloaded == 2600 * 7680 - shared // 2
    assert kv.shared == shared and holds(kv, one, 0, 2000, 1)
    kv.remove(one)  # the pages that were shared are those of `two` alone now
    with glake.empty(96 * 2**20 - live()), pytest.raises(errors.OutOfMemory):
        kv.load(two)
    kv.load(two)
    assert holds(kv, two, 0, 2000, 1) and holds(kv, two, 2000, 2600, 2)


def test_what_an_offloaded_sequence_refuses() -> None:
    kv = cache()
    one, empty = kv.add(500), kv.add()
    kv.offload(one)
    for call in (kv.grow, kv.cut, kv.fork, kv.view):
        with pytest.raises(errors.InvalidArgument, match=r"offloaded: load\(\) it first"):
            call(one, 1)
    with pytest.raises(errors.InvalidArgument, match="no sequence 5"):
        kv.offload(5)
    assert kv.offload(empty).done() and kv.load(empty).done()
    kv.remove(one)
    assert live() == 0 and kv.offloaded == 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value_dim", [0, 16, 100])
def test_values_of_another_width(layout: str, value_dim: int) -> None:
    kv = cache(layout, value_dim=value_dim)
    one = kv.add(2000)
    write(kv, one, 0, 2000, 1)
    two = kv.fork(one, 1500)
    write(kv, two, 1490, 1500, 2)  # tokens in the last page, which is its own
    kv.cut(one, 300)
    kv.grow(one, 2500)
    write(kv, one, 300, 2500, 3)
    kv.offload(two)
    kv.load(two)
    assert holds(kv, two, 0, 1490, 1) and holds(kv, two, 1490, 1500, 2)
    assert holds(kv, one, 0, 300, 1) and holds(kv, one, 300, 2500, 3)
    keys, values = kv.view(one, 1)
    assert keys.shape == (2500, 5, 64) and values.shape == (2500, 5, value_dim)
    if layout == "tokens":
        assert kv.add(1) >= 0 and kv._layout.regions[0].row == 3 * 5 * (64 + value_dim) * 4


def test_no_place_is_named() -> None:
    kv = cache(sequences=1)
    kv.add()
    with pytest.raises(errors.OutOfMemory, match="all 1 places"):
        kv.add()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda kv: kv.grow(3, 1), errors.InvalidArgument),
        (lambda kv: kv.grow(kv.add(), 4001), errors.InvalidArgument),
        (lambda kv: kv.cut(kv.add(5), 6), errors.InvalidArgument),
        (lambda kv: kv.add(-1), errors.InvalidArgument),
        (lambda kv: kv.fork(kv.add(5), 6), errors.InvalidArgument),
        (lambda kv: kv.keys(3), errors.InvalidArgument),
        (lambda kv: kv.remove("a"), errors.WrongType),
        (lambda kv: cache("pages"), errors.InvalidArgument),
        (lambda kv: cache(layers=0), errors.InvalidArgument),
        (lambda kv: cache(value_dim=-1), errors.InvalidArgument),
        (lambda kv: glake.KVCache(1, 1, 1, "float16", 1), errors.WrongType),
    ],
)
def test_wrong_use(call: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(cache())  # type: ignore[operator]


def test_a_tensor_outlives_the_cache() -> None:
    kv = cache()
    one = kv.add(10)
    write(kv, one, 0, 10, 1)
    keys = kv.keys(0)
    del kv
    gc.collect()
    assert keys[one, 3, 0, 0] == 10_003


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    """Against a model: each sequence is a list of (first token, last token, value)."""
    dice = random.Random(seed)
    kv = cache(LAYOUTS[seed % 2], tokens=1500, sequences=5, value_dim=(64, 64, 30, 0)[seed % 4])
    model: dict[int, list[int]] = {}  # the value of each token
    away: set[int] = set()
    blocks: list[glake.Buffer] = []
    for step in range(80):
        live_ones = list(model)
        one = dice.choice(live_ones) if live_ones else -1
        action = dice.choice(["add", "grow", "grow", "cut", "fork", "remove", "block", "offload"])
        try:
            if one in away and (action == "remove" or dice.random() < 0.3):
                kv.load(one)
                away.remove(one)
            elif one in away and action not in ("add", "block"):
                continue
            elif action == "offload" and one >= 0:
                kv.offload(one)
                away.add(one)
            elif action == "add":
                tokens = dice.randrange(0, 800)
                new = kv.add(tokens)
                model[new] = [step] * tokens
                write(kv, new, 0, tokens, step)
            elif action == "block":
                if blocks and dice.random() < 0.6:
                    blocks.pop()
                blocks.append(glake.empty(dice.randrange(1, 24 << 20)))
            elif one < 0:
                continue
            elif action == "grow":
                had, tokens = len(model[one]), dice.randrange(0, 1501)
                kv.grow(one, tokens)
                if tokens > had:
                    write(kv, one, had, tokens, step)
                    model[one] += [step] * (tokens - had)
            elif action == "cut":
                tokens = dice.randrange(0, len(model[one]) + 1)
                kv.cut(one, tokens)
                model[one] = model[one][:tokens]
            elif action == "fork":
                tokens = dice.randrange(0, len(model[one]) + 1)
                fork = kv.fork(one, tokens)
                model[fork] = model[one][:tokens]
            else:
                kv.remove(one)
                del model[one]
        except errors.OutOfMemory:
            pass
        if step % 6 == 5:
            _C.check(0)
            for sequence, values in model.items():
                if sequence not in away:
                    assert_holds(kv, sequence, values)


def assert_holds(kv: KVCache, sequence: int, values: list[int]) -> None:
    """`values`: of each token."""
    first = 0
    for value, same in itertools.groupby(values):
        last = first + len(list(same))
        assert holds(kv, sequence, first, last, value), (sequence, first, last)
        first = last
