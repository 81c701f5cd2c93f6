"""Batches of local text. Their rows are packed or padded, and split over ranks. A part of the text
is kept for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from glake.errors import DataTooShort, InvalidOption
from glake.trainer.configurable import Configurable, SharePart, Width
from glake.trainer.data import corpus
from glake.trainer.data.order import IGNORED, Packed, Padded


@dataclass(frozen=True)
class Batch:
    """The input of one forward pass: NumPy arrays, int64 [sequences, length]."""

    tokens: Any
    targets: Any  # the next token, or IGNORED
    segments: Any  # the document of each token, or None where each row is one document

    @property
    def count(self) -> int:
        """The number of tokens that are predicted."""
        return int((self.targets != IGNORED).sum())


class Data(Configurable):
    """The text of an experiment."""

    class Config(Configurable.Config):
        path: str = ""  # a file, or a folder of files
        pattern: str = "**/*"  # which files of a folder
        separator: str = ""  # ends a document within a file; "": a file is a document
        tokenizer: str = "bytes"  # or the JSON file of a `tokenizers` tokenizer
        arrangement: Literal["packed", "padded"] = "packed"
        length: Width = 128  # tokens of a sequence, or of the longest one if they are padded
        evaluation: SharePart = 0.05  # this share of the text, its end, is kept for evaluation

    def __init__(self, config: Config, *, sequences: int, seed: int) -> None:
        """Reads the text. A step has `sequences` sequences. Raises DataMissing, DataTooShort or
        InvalidOption."""
        super().__init__(config)
        text = corpus.read(config.path, config.pattern, config.separator, config.tokenizer)
        self.vocabulary, self.tokens = text.vocabulary, len(text.tokens)
        self._sequences = sequences
        train, self._kept = text.split(config.evaluation)
        self._order = self._arranged(train, seed)

    def _arranged(self, text: corpus.Corpus, seed: int) -> Packed | Padded:
        if self.config.arrangement == "packed":
            return Packed(text, self.config.length, seed)
        return Padded(text, self.config.length, seed, self._sequences)

    def batch(self, step: int, rank: int, ranks: int, pieces: int = 1) -> list[Batch]:
        """The rank's part of a step, one piece for each pass whose gradients are accumulated.

        All ranks' parts together are the same sequences whatever the number of ranks and pieces.
        """
        return self._parts(self._order, step, rank, ranks, pieces)

    def _parts(
        self, order: Packed | Padded, step: int, rank: int, ranks: int, pieces: int
    ) -> list[Batch]:
        count = ranks * pieces
        if self._sequences < count:
            raise InvalidOption(
                f"sequences = {self._sequences} of a step cannot be shared by {ranks} ranks with "
                f"{pieces} accumulated pieces each: take {count} at least"
            )
        chosen: list[Any] = order.indices(step, self._sequences)
        ends = [len(chosen) * at // count for at in range(count + 1)]
        mine = range(rank * pieces, (rank + 1) * pieces)
        return [_batch(*order.batch(chosen[ends[at] : ends[at + 1]])) for at in mine]

    @property
    def tokens_of_sequence(self) -> int:
        """The tokens of a sequence. For padded ones it is a lower bound on the average in the
        longest step."""
        return self._order.tokens_of_sequence

    def check_evaluation(self, steps: int) -> None:
        """Raises DataTooShort if the text kept for evaluation is too short for it."""
        if not any(batch.count for batch in self.evaluation(steps, 0, 1)):
            raise DataTooShort(
                f"the text kept for evaluation (data.evaluation = {self.config.evaluation}) has no "
                "token that is predicted: keep a larger share, or set evaluation.every=0"
            )

    def evaluation(self, steps: int, rank: int, ranks: int) -> Iterator[Batch]:
        """The rank's part of the first `steps` batches of the text that is kept for evaluation.
        They are the same each time. Raises DataTooShort if that text does not make a batch."""
        try:
            order = self._arranged(self._kept, seed=0)
        except DataTooShort as error:
            raise DataTooShort(
                f"the text kept for evaluation (data.evaluation = {self.config.evaluation}): "
                f"{error}; or keep a larger share, or set evaluation.every=0"
            ) from None
        for step in range(steps):
            yield from self._parts(order, step, rank, ranks, 1)


def _batch(tokens: Any, targets: Any, segments: Any) -> Batch:
    if segments is not None and not segments.any():
        segments = None
    return Batch(np.ascontiguousarray(tokens), np.ascontiguousarray(targets), segments)
