"""Local text as one array of tokens, with the place where each document begins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glake import extras
from glake.errors import DataMissing, InvalidOption

_PROBE = 4096  # bytes of a file that tell whether it is text


@dataclass(frozen=True)
class Corpus:
    """Documents: the tokens of the i-th are tokens[starts[i]:starts[i + 1]]."""

    tokens: Any  # 1-D, uint8 or uint32, or a FileBytes; a part shares the whole corpus's array
    starts: Any  # 1-D int64; the last one is the end of the last document
    vocabulary: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        """The number of tokens of all documents."""
        return int(self.starts[-1] - self.starts[0])

    def split(self, share: float) -> tuple[Corpus, Corpus]:
        """Splits off the last `share` of the tokens. Returns (the other part, that part). A
        document at the border is cut in two."""
        cut = self.size - int(self.size * share)
        return self._between(0, cut), self._between(cut, self.size)

    def _between(self, first: int, end: int) -> Corpus:
        inside = self.starts[(self.starts > first) & (self.starts < end)]
        last = [end] if end > first else []
        starts = np.concatenate([[first], inside, last]).astype(np.int64)
        return Corpus(self.tokens, starts, self.vocabulary)


class FileBytes:
    """A file as an array of its bytes. A slice reads them. The file is not mapped, because if it
    were cut short meanwhile, a mapping would end the process by SIGBUS."""

    def __init__(self, path: Path) -> None:
        self._file, self._size = path.open("rb"), path.stat().st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> Any:
        """Raises DataMissing if the file is shorter than it was."""
        first, end, _ = part.indices(self._size)
        self._file.seek(first)
        found = self._file.read(max(0, end - first))
        if len(found) < end - first:
            raise DataMissing(
                f"{self._file.name} was cut short while the run reads it: bring it back as it was, "
                "and run the same command again"
            )
        return np.frombuffer(found, np.uint8)


def read(path: str, pattern: str, separator: str, tokenizer: str) -> Corpus:
    """The text of a file, or of the matching files in a folder, in the order of their names.

    Args:
        path: a file or a folder.
        pattern: which files of a folder, as for pathlib's glob. Files that are not text are left
            out.
        separator: ends a document within a file; "" makes each file one document.
        tokenizer: "bytes", or the JSON file of a `tokenizers` tokenizer.

    Raises DataMissing; InvalidOption for a tokenizer that cannot be read.
    """
    if not path:
        raise DataMissing("no text to train on is named: --data PATH (data.path), a file or folder")
    try:
        files = _files(Path(os.path.expanduser(path)), pattern)
        if tokenizer == "bytes":
            return _bytes(files, separator)
        return _encoded(files, separator, tokenizer)
    except DataMissing:
        raise
    except OSError as error:
        raise DataMissing(
            f"data.path = {path!r}: {error.strerror}; name a file or folder that can be read"
        ) from None


def _files(path: Path, pattern: str) -> list[Path]:
    if path.is_file():
        files = [path]
    elif path.is_dir():
        try:
            found = sorted(each for each in path.glob(pattern) if each.is_file())
        except (ValueError, NotImplementedError, IndexError) as error:
            raise InvalidOption(
                f"data.pattern = {pattern!r}: {error}; take one such as '**/*' or '*.txt', "
                "relative to data.path"
            ) from None
        files = [each for each in found if _is_text(each)]
        if not files:
            raise DataMissing(
                f"{path}: {len(found)} files match {pattern!r}, none of them text; data.pattern "
                "chooses others"
            )
    elif path.exists():
        raise DataMissing(
            f"{path} is a device, a pipe or a socket: the trainer reads its text from a file or "
            "folder, as often as it needs it; write the text to a file"
        )
    else:
        raise DataMissing(
            f"there is no file or folder {str(path)!r} of text to train on: name one with "
            "--data PATH (data.path)"
        )
    if sum(each.stat().st_size for each in files) == 0:
        raise DataMissing(f"{path}: empty; there is no text in it to train on")
    return files


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(_PROBE)


def _bytes(files: list[Path], separator: str) -> Corpus:
    files = [each for each in files if each.stat().st_size]
    if len(files) == 1:
        parts: list[Any] = [FileBytes(files[0])]
    else:  # every FileBytes would hold its file open
        parts = [np.fromfile(each, np.uint8) for each in files]
    starts, offset = [0], 0
    for part in parts:
        starts += [offset + end for end in _ends(part, separator)]
        offset += len(part)
    tokens = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return Corpus(tokens, np.array(starts, np.int64), 256)


def _ends(part: Any, separator: str) -> Iterator[int]:
    """The ends of the documents of a file. The last one is the file's end."""
    if separator:
        for match in re.finditer(re.escape(separator.encode()), memoryview(part[:])):
            if match.end() < len(part):
                yield match.end()
    yield len(part)


def _encoded(files: list[Path], separator: str, tokenizer: str) -> Corpus:
    need = f"data.tokenizer = {tokenizer!r}"
    library = extras.needed("tokenizers", need, "tokenizers", "trainer")
    try:
        encoder = library.Tokenizer.from_file(os.path.expanduser(tokenizer))
    except Exception as error:  # the library raises Exception itself
        raise InvalidOption(f"{need}: {error}; take 'bytes', or a tokenizer.json") from None
    texts: list[str] = []
    for each in files:
        text = each.read_bytes().decode("utf-8", "replace")  # line ends stay as they are
        *ended, last = text.split(separator) if separator else [text]
        pieces = [*(piece + separator for piece in ended), last]
        texts += [piece for piece in pieces if piece]
    lists = [found.ids for found in encoder.encode_batch(texts, add_special_tokens=False)]
    lists = [ids for ids in lists if ids]
    starts = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    tokens = np.fromiter((one for ids in lists for one in ids), np.uint32, int(starts[-1]))
    # Ids may leave gaps, so that the largest id says more than their number.
    largest = max(encoder.get_vocab(with_added_tokens=True).values(), default=0)
    return Corpus(tokens, starts, largest + 1)
