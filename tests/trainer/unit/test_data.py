"""Batches of text: what is in them. They depend on the seed and the step alone."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glake.errors import DataMissing, DataTooShort, InvalidOption
from glake.trainer.data import Data
from glake.trainer.data.corpus import Corpus, read
from glake.trainer.data.order import IGNORED, Packed, Padded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three documents, and of a file that is no document."""
    for at, size in enumerate((700, 300, 500)):
        text = np.random.default_rng(at).integers(32, 122, size).astype(np.uint8)
        (tmp_path / f"{at}.txt").write_bytes(text.tobytes())
    (tmp_path / "picture.bin").write_bytes(b"\0" * 100)
    return tmp_path


def data(path: Path, sequences: int = 4, seed: int = 0, **fields: Any) -> Data:
    made: Data = Data.Config(path=str(path), **fields).build(sequences=sequences, seed=seed)
    return made


def rows(data: Data, step: int, ranks: int, pieces: int = 1) -> list[list[int]]:
    """The step's sequences of all ranks, without padding."""
    found = []
    for rank in range(ranks):
        for batch in data.batch(step, rank, ranks, pieces):
            for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
                found.append([int(t) for t, u in zip(tokens, targets, strict=True) if u != IGNORED])
    return found


@pytest.mark.parametrize("arrangement", ["packed", "padded"])
def test_a_step_is_the_same_text_whatever_the_ranks_and_pieces(
    folder: Path, arrangement: str
) -> None:
    made = data(folder, 12, arrangement=arrangement, length=16)
    for step in (0, 3, 40):
        alone = rows(made, step, 1)
        assert len(alone) == 12
        for ranks, pieces in ((2, 1), (3, 1), (5, 1), (2, 3), (4, 2)):
            assert rows(made, step, ranks, pieces) == alone


@pytest.mark.parametrize("arrangement", ["packed", "padded"])
def test_another_process_begins_at_any_step_and_another_seed_differs(
    folder: Path, arrangement: str
) -> None:
    fields = {"arrangement": arrangement, "length": 16}
    first, second = data(folder, **fields), data(folder, **fields)
    other = data(folder, seed=1, **fields)
    steps = [rows(first, step, 1) for step in range(60)]
    assert [rows(second, step, 1) for step in (59, 20, 0)] == [steps[59], steps[20], steps[0]]
    assert rows(other, 0, 1) != steps[0]


def test_an_epoch_of_packed_rows_is_the_text(folder: Path) -> None:
    corpus = read(str(folder), "*.txt", "", "bytes")
    order = Packed(corpus, 16, seed=3)
    tokens, targets, segments = order.batch(order.indices(0, order.rows))
    assert order.rows == (1500 - 1) // 16
    assert len(set(map(tuple, tokens))) == order.rows  # nothing is drawn twice
    drawn, there = np.bincount(tokens.reshape(-1)), np.bincount(corpus.tokens[:])
    assert (drawn <= there[: len(drawn)]).all()
    crossings = (segments[:, 1:] != segments[:, :-1]).sum()
    assert crossings <= 2 and (targets == IGNORED).sum() <= 2
    inside = targets[:, :-1] != IGNORED
    assert (tokens[:, 1:][inside] == targets[:, :-1][inside]).all()
    assert order.indices(1, order.rows)[0] == (1, 0)  # the next epoch


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 20))
def test_targets_are_the_next_token_of_the_same_document(sizes: list[int], length: int) -> None:
    # Each token encodes its document and its place there.
    tokens = np.array([d * 1000 + at for d, n in enumerate(sizes) for at in range(n)], np.uint32)
    corpus = Corpus(tokens, np.cumsum([0, *sizes]).astype(np.int64), 1 << 20)
    if len(tokens) > length:
        order = Packed(corpus, length, 0)
        check(*order.batch(order.indices(0, order.rows * 2)), sizes)
    if any(size >= 2 for size in sizes):
        padded = Padded(corpus, length, 0, sequences=1)
        for step in range(padded._steps):
            check(*padded.batch(padded.indices(step, 1)), sizes)


def check(tokens: Any, targets: Any, segments: Any, sizes: list[int]) -> None:
    predicted = targets != IGNORED
    assert (targets[predicted] == tokens[predicted] + 1).all()
    if segments is None:
        return
    for row, target, segment in zip(tokens, targets, segments, strict=True):
        for at in range(len(row)):
            last = row[at] % 1000 == sizes[row[at] // 1000] - 1
            assert (target[at] == IGNORED) == bool(last)
        assert (np.diff(segment) == (np.diff(row) != 1)).all() or len(row) == 1


def test_padded_batches_vary_in_length_and_waste_little(tmp_path: Path) -> None:
    text = "\n\n".join("word " * (1 + at % 37) for at in range(4000))
    (tmp_path / "text").write_text(text)
    made = data(tmp_path, 8, arrangement="padded", separator="\n\n", length=128)
    batches = [made.batch(step, 0, 1)[0] for step in range(100)]
    assert len({batch.tokens.shape[1] for batch in batches}) > 10
    assert max(batch.tokens.shape[1] for batch in batches) <= 128
    padding = 1 - sum(b.count for b in batches) / sum(b.tokens.size for b in batches)
    assert padding < 0.1
    assert all(batch.segments is None for batch in batches)


def test_the_text_kept_for_evaluation_is_not_trained_on(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a" * 9000 + b"b" * 1000)
    made = data(tmp_path, evaluation=0.1, length=16)
    for step in range(200):
        assert (made.batch(step, 0, 1)[0].tokens == ord("a")).all()
    kept = list(made.evaluation(3, 0, 1))
    assert len(kept) == 3 and all((batch.tokens == ord("b")).all() for batch in kept)
    halves = [batch.tokens for rank in (0, 1) for batch in made.evaluation(3, rank, 2)]
    assert sorted(map(len, halves)) == [2] * 6


def test_a_tokenizers_file(tmp_path: Path, folder: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("a b a\na a b c")
    corpus = read(str(tmp_path / "text"), "", "\n", str(tmp_path / "tokenizer.json"))
    assert list(corpus.tokens) == [0, 1, 0, 0, 0, 1, 2]
    assert list(corpus.starts) == [0, 3, 7] and corpus.vocabulary == 3


def test_a_tokenizer_sees_the_documents_that_bytes_have(tmp_path: Path) -> None:
    """Line ends stay as they are, and separators do not overlap."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = {each: number for number, each in enumerate("abc\r\n")}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    made.save(str(tmp_path / "tokenizer.json"))
    for text, separator in (("aa\r\n\r\nb\r\n\r\nc", "\r\n\r\n"), ("a\n\n\nb\n\n\n\nc", "\n\n")):
        (tmp_path / "text").write_bytes(text.encode())
        plain = read(str(tmp_path / "text"), "", separator, "bytes")
        coded = read(str(tmp_path / "text"), "", separator, str(tmp_path / "tokenizer.json"))
        assert list(coded.starts) == list(plain.starts) and len(plain) > 2
        assert bytes(plain.tokens[:]) == text.encode()


def test_ids_of_a_tokenizer_may_leave_gaps(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 500}, "a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("a b a")
    assert read(str(tmp_path / "text"), "", "", str(tmp_path / "tokenizer.json")).vocabulary == 501


def test_wrong_input_says_what_to_do(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataMissing, match="no file or folder .*gone.*--data"):
        data(tmp_path / "gone")
    (tmp_path / "empty").touch()
    with pytest.raises(DataMissing, match="/dev/null is a device, a pipe or a socket"):
        read("/dev/null", "**/*", "", "bytes")
    with pytest.raises(DataMissing, match="empty"):
        data(tmp_path / "empty")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataMissing, match=r"0 files match '\*\*/\*'"):
        data(tmp_path / "nothing")
    with pytest.raises(DataMissing, match=r"1 files match '\*\.bin', none of them text"):
        data(folder, pattern="*.bin")
    with pytest.raises(DataTooShort, match="do not make one sequence of data.length = 5000"):
        data(folder, length=5000)
    with pytest.raises(DataTooShort, match="do not make one batch of 900"):
        data(folder, 900, arrangement="padded")
    with pytest.raises(DataTooShort, match="kept for evaluation"):
        list(data(folder, evaluation=0.01).evaluation(1, 0, 1))
    with pytest.raises(InvalidOption, match="cannot be shared by 3 ranks with 2"):
        data(folder).batch(0, 0, 3, 2)
    (tmp_path / "bad.json").write_text(json.dumps({"model": 1}))
    pytest.importorskip("tokenizers")
    with pytest.raises(InvalidOption, match="data.tokenizer"):
        data(folder, tokenizer=str(tmp_path / "bad.json"))
    with pytest.raises(InvalidOption, match="evaluation: 1.0 is out of range: take 0 or"):
        data(folder, evaluation=1.0)


def test_no_path_is_no_text_and_many_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="no text to train on is named: --data PATH"):
        read("", "**/*", "", "bytes")  # it once read the current folder
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is above the highest open number, as other tests of this process may hold files.
    room = max(map(int, os.listdir("/proc/self/fd"))) + 20
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    for number in range(100):
        (tmp_path / f"{number:03}").write_text(f"one{number:03}\n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, most))  # each file was once held open
    try:
        found = read(str(tmp_path), "**/*", "\n", "bytes")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(found) == 100 and bytes(found.tokens[:14]) == b"one000\none001\n"


@pytest.mark.parametrize("arrangement", ["packed", "padded"])
def test_a_file_that_is_cut_short_while_a_run_reads_it_is_an_error(
    tmp_path: Path, arrangement: str
) -> None:
    """When files were mapped, this ended the process by SIGBUS."""
    text = tmp_path / "text"
    text.write_text("a line of text\n" * 2000)
    made = data(text, arrangement=arrangement, length=16)
    made.batch(0, 0, 1)
    os.truncate(text, 20)
    with pytest.raises(DataMissing, match="text was cut short while the run reads it: bring it"):
        [made.batch(step, 0, 1) for step in range(20)]
