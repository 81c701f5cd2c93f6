"""Chooses the text of a step. It depends on the seed and the step, not on the number of ranks.

Nothing is remembered from one step to the next, so a run goes on at any step.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from glake.errors import DataTooShort
from glake.trainer.data.corpus import Corpus

_POOL = 32  # batches whose documents are sorted by length together
IGNORED = -100  # a target that is not to be predicted


class Packed:
    """Rows of equal length. An epoch's documents are joined in a random order and cut into rows.

    `segments` numbers the documents of a row. The last token of a document does not predict the
    next document.
    """

    def __init__(self, corpus: Corpus, length: int, seed: int) -> None:
        """Raises DataTooShort if the documents do not fill one row."""
        self._corpus, self._length, self._seed = corpus, length, seed
        self.tokens_of_sequence = length
        self.rows = (corpus.size - 1) // length
        if self.rows < 1:
            raise DataTooShort(
                f"{corpus.size} tokens of text do not make one sequence of data.length = "
                f"{length} (and one token more): shorten it, or bring more text"
            )
        self._epoch = functools.lru_cache(maxsize=2)(self._drawn)

    def indices(self, step: int, sequences: int) -> list[tuple[int, int]]:
        """(epoch, row) of each sequence of a step."""
        first = step * sequences
        return [divmod(at, self.rows) for at in range(first, first + sequences)]

    def batch(self, chosen: list[tuple[int, int]]) -> tuple[Any, Any, Any]:
        """(tokens, targets, segments) of these rows, int64 [rows, length]."""
        shape = (len(chosen), self._length + 1)
        tokens, documents = np.empty(shape, np.int64), np.empty(shape, np.int64)
        for at, (epoch, row) in enumerate(chosen):
            self._fill(epoch, row, tokens[at], documents[at])
        same = documents[:, 1:] == documents[:, :-1]
        targets = np.where(same, tokens[:, 1:], IGNORED)
        return tokens[:, :-1], targets, documents[:, :-1]

    def _drawn(self, epoch: int) -> tuple[Any, Any, Any]:
        """(documents in order, where each ends in the joined stream, order of the rows)."""
        draw = np.random.default_rng([self._seed, epoch])
        order = draw.permutation(len(self._corpus))
        ends = np.cumsum(np.diff(self._corpus.starts)[order])
        return order, ends, draw.permutation(self.rows)

    def _fill(self, epoch: int, row: int, tokens: Any, documents: Any) -> None:
        order, ends, rows = self._epoch(epoch)
        at = int(rows[row]) * self._length
        place = int(np.searchsorted(ends, at, side="right"))
        done = segment = 0
        while done < len(tokens):
            document = order[place]
            left = int(ends[place]) - at
            end = int(self._corpus.starts[document + 1])
            count = min(left, len(tokens) - done)
            tokens[done : done + count] = self._corpus.tokens[end - left : end - left + count]
            documents[done : done + count] = segment
            done, at, place, segment = done + count, at + count, place + 1, segment + 1


class Padded:
    """Each row has a document (or a piece of one). Each batch is as long as its longest row.

    Documents of similar length share a batch, and the length varies from step to step. Padding
    comes last and predicts nothing, so a causal model needs no mask for it.
    """

    def __init__(self, corpus: Corpus, length: int, seed: int, sequences: int) -> None:
        """Raises DataTooShort if the documents do not make one batch."""
        self._corpus, self._seed, self._sequences = corpus, seed, sequences
        self._first, self._count = _pieces(corpus.starts, length)
        self._steps = len(self._first) // sequences
        if self._steps < 1:
            raise DataTooShort(
                f"{len(self._first)} documents (or pieces of data.length = {length} tokens of "
                f"them) do not make one batch of {sequences} sequences: lower sequences, bring "
                "more text, or cut it by data.separator"
            )
        self.tokens_of_sequence = int(self._count.mean()) - 1  # the longest step has no fewer
        self._epoch = functools.lru_cache(maxsize=2)(self._drawn)

    def indices(self, step: int, sequences: int) -> list[int]:
        """The pieces of a step."""
        assert sequences == self._sequences
        epoch, at = divmod(step, self._steps)
        return [int(piece) for piece in self._epoch(epoch)[at]]

    def batch(self, chosen: list[int]) -> tuple[Any, Any, None]:
        """(tokens, targets, None) of these pieces, int64 [pieces, the longest's length]."""
        length = max(int(self._count[piece]) for piece in chosen) - 1
        tokens = np.zeros((len(chosen), length), np.int64)
        targets = np.full((len(chosen), length), IGNORED, np.int64)
        for at, piece in enumerate(chosen):
            first, count = int(self._first[piece]), int(self._count[piece])
            text = self._corpus.tokens[first : first + count]
            tokens[at, : count - 1], targets[at, : count - 1] = text[:-1], text[1:]
        return tokens, targets, None

    def _drawn(self, epoch: int) -> Any:
        """The pieces of each step of an epoch, [steps, sequences]."""
        draw = np.random.default_rng([self._seed, epoch])
        pieces = draw.permutation(len(self._first))[: self._steps * self._sequences]
        pool = np.arange(len(pieces)) // (_POOL * self._sequences)
        pieces = pieces[np.lexsort((self._count[pieces], pool))]
        return draw.permutation(pieces.reshape(self._steps, self._sequences))


def _pieces(starts: Any, length: int) -> tuple[Any, Any]:
    """(first token, tokens) of each piece. It has at most length + 1 tokens, and at least two."""
    counts = np.diff(starts)
    several = -(-counts // (length + 1))
    document = np.repeat(np.arange(len(counts)), several)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(several) - several, several)
    first = starts[document] + nth * (length + 1)
    count = np.minimum(starts[document + 1] - first, length + 1)
    return first[count >= 2], count[count >= 2]
