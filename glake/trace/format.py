"""Writing and reading allocation traces, an event at a time (docs/trace-format.md).

>>> with TraceWriter("job.trace.gz", {"job": "train"}) as trace:
...     trace.alloc(1, 512, tag="forward;embedding")
...     trace.free(1)
>>> [event.op for event in read_events("job.trace.gz")]
['a', 'f']
"""

from __future__ import annotations

import functools
import gzip
import importlib
import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import IO, Any, NamedTuple, TypeVar

from glake import arguments, files
from glake.errors import TraceError, WrongType

__all__ = [
    "FORMAT",
    "Event",
    "EventReader",
    "TraceWriter",
    "clean_tag",
    "read_events",
]

FORMAT = "a ID BYTES STREAM [TAG] | f ID | r ID STREAM | s STEP"
MAX_BYTES = (1 << 63) - 1
MAX_ID = (1 << 64) - 1
MAX_STREAM = (1 << 32) - 1
MAX_TAG = 1024
MAX_LINE = 64 << 10

_GZIP_MAGIC = b"\x1f\x8b"
_READ = 1 << 18
_MOST_CHECKED = 1 << 30

_Parsed = TypeVar("_Parsed")


class Event(NamedTuple):
    """One line of a trace.

    ``op`` is "a" (allocate), "f" (free), "r" (record_stream) or "s" (a step begins). ``id`` is the
    block's number, or the step's. ``bytes`` is the block's size, also for "f" and "r", and 0 for a
    step. Only "a" and "r" have a ``stream``, and only "a" has a ``tag`` ("": none). ``line`` is the
    line's number, from 1.
    """

    op: str
    id: int
    bytes: int
    stream: int
    tag: str
    line: int


def clean_tag(text: str) -> str:
    """A text as a tag. Blanks and unprintable characters become "_".

    If it is longer than 1024 bytes, its beginning is cut off, because the last frames say most.

    Args:
        text: any.

    Raises:
        WrongType: not a string.
    """
    if not isinstance(text, str):
        raise WrongType(f"a tag is a string, not {arguments.type_name(text)}")
    tag = "".join("_" if each.isspace() or not each.isprintable() else each for each in text)
    data = tag.encode("utf-8", "replace")
    if len(data) <= MAX_TAG:
        return data.decode()
    kept = data[-(MAX_TAG - 3) :].decode("utf-8", "ignore")
    return "..." + kept


@functools.lru_cache(maxsize=4096)
def _tag_field(tag: str) -> str:
    if clean_tag(tag) != tag:
        raise TraceError(
            f"tag {tag[:60]!r}: a tag is at most {MAX_TAG} bytes of printable UTF-8 without "
            "blanks; clean_tag() makes one of any text"
        )
    return f" {tag}" if tag else ""


def _check(name: str, value: int, least: int, most: int) -> None:
    if arguments.whole(value) is None:
        raise WrongType(f"{name} {value!r}: a whole number from {least} to {most}")
    if not least <= value <= most:
        raise TraceError(f"{name} {value}: must be from {least} to {most}")


class TraceWriter:
    """Writes a trace, as gzip if the name ends in .gz or ``packed`` says so. Its memory is bounded
    by what is live.

    A file closed early is a valid trace of what came before. The same calls give the same bytes.
    ``live_bytes`` and ``peak_live_bytes`` tell what was written so far; facts known only at the end
    are written with :meth:`fact`.

    Args:
        path: of the file.
        header: facts that are known at the start.
        packed: whether it is gzip; None: if its name ends in .gz.

    Raises:
        TraceError: what the format forbids: a size below one byte, an allocation with a live id, a
            free of an id that is not live, a step that does not follow the last, a tag with blanks.
        WrongType: a path, a header, a number or a text of another type.
        FileFailed: the file cannot be made or written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: Mapping[str, object] | None = None,
        packed: bool | None = None,
    ):
        name = arguments.path("a trace", path)
        if not isinstance(header, Mapping | None):
            raise WrongType(f"header {header!r}: facts by name, such as {{'job': 'train'}}")
        self.live_bytes = 0
        self.peak_live_bytes = 0
        self._live: dict[int, int] = {}
        self._step = -1
        self._path = name
        self._file: IO[bytes] = opened(name, "wb")
        self._packed: gzip.GzipFile | None = None
        out: Any = self._file
        if name.endswith(".gz") if packed is None else packed:
            # The header has neither a file name nor a time, so that the bytes depend on the events
            # alone.
            out = self._packed = gzip.GzipFile("", "wb", 6, self._file, mtime=0)
        self._text = io.TextIOWrapper(out, encoding="utf-8", newline="\n")
        try:
            self.fact("format", FORMAT)
            for key, value in (header or {}).items():
                self.fact(key, value)
        except BaseException:
            self.close()
            raise

    def alloc(self, id: int, nbytes: int, stream: int = 0, tag: str = "") -> None:
        """A block is allocated.

        Args:
            id: its number, which no live block has.
            nbytes: its size, 1 or more.
            stream: the stream that uses it.
            tag: what it is for, without blanks; "": nothing is known.

        Raises:
            TraceError: the format forbids the line. The other calls raise it too.
            WrongType: a value of another type. The other calls raise it too.
        """
        _check("id", id, 0, MAX_ID)
        _check("nbytes", nbytes, 1, MAX_BYTES - self.live_bytes)
        _check("stream", stream, 0, MAX_STREAM)
        if not isinstance(tag, str):
            raise WrongType(f"tag {tag!r}: a text")
        if id in self._live:
            raise TraceError(f"id {id} is allocated already and not yet freed")
        self._write(f"a {id} {nbytes} {stream}{_tag_field(tag)}\n")
        self._live[id] = nbytes
        self.live_bytes += nbytes
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)

    def free(self, id: int) -> None:
        """A block is freed, in the order of its stream.

        Args:
            id: the block's.
        """
        self._check_live(id)
        self._write(f"f {id}\n")
        self.live_bytes -= self._live.pop(id)

    def record_stream(self, id: int, stream: int) -> None:
        """Work on another stream uses a block too.

        Args:
            id: the block's.
            stream: the other stream.
        """
        self._check_live(id)
        _check("stream", stream, 0, MAX_STREAM)
        self._write(f"r {id} {stream}\n")

    def step(self, n: int) -> None:
        """A step begins.

        Args:
            n: its number, above that of the step before.
        """
        _check("step", n, self._step + 1, MAX_ID)
        self._write(f"s {n}\n")
        self._step = n

    def fact(self, key: str, value: object) -> None:
        """A fact about the job, for the reader's `header`. The last fact with a key counts.

        Args:
            key: what it is about, without a colon.
            value: its text, str(value), is written; one line.

        Raises:
            TraceError: a colon, a line break or a line that is too long.
        """
        line = f"# {arguments.text('a key', key)}: {value}"
        if not key.strip() or ":" in key or not line.replace("\t", " ").isprintable():
            raise TraceError(f"{line[:80]!r}: a key must have no colon, and a fact no line break")
        self._write_line(line)

    def comment(self, text: str) -> None:
        """A line for people. One of the form `key: value` is read as a fact.

        Args:
            text: of one line.

        Raises:
            TraceError: a line break, or a line that is too long.
        """
        if not arguments.text("a comment", text).replace("\t", " ").isprintable():
            raise TraceError(f"{text[:80]!r}: a comment holds no line break")
        self._write_line(f"# {text}")

    def close(self) -> None:
        """Ends the file. A second call does nothing.

        Raises:
            FileFailed: the last lines cannot be written to the file.
        """
        try:
            try:
                self._text.close()
            finally:
                if self._packed is not None:
                    self._packed.close()
                self._file.close()
        except OSError as error:
            raise files.failed(error, self._path) from None

    def _write(self, text: str) -> None:
        if self._text.closed:
            raise TraceError(f"{self._path} is closed: write to it before close()")
        try:
            self._text.write(text)
        except OSError as error:
            raise files.failed(error, self._path) from None

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_live(self, id: int) -> None:
        _check("id", id, 0, MAX_ID)
        if id not in self._live:
            raise TraceError(f"id {id} is not a live block")

    def _write_line(self, line: str) -> None:
        if len(line.encode("utf-8", "replace")) > MAX_LINE:
            raise TraceError(f"{line[:80]!r}...: a line is at most {MAX_LINE} bytes")
        self._write(line + "\n")


def _native() -> Any:
    return importlib.import_module("glake._C")


def opened(path: str | os.PathLike[str], mode: str) -> IO[bytes]:
    """The opened file, which the caller closes. Raises FileFailed."""
    try:
        return open(path, mode)
    except (OSError, ValueError) as error:  # a ValueError: no file has such a name
        raise files.failed(error, path) from None


class Chunks(Iterator[bytes]):
    """The bytes of a file in pieces. A gzip is unpacked (``packed`` is known once the first piece
    is read).

    Raises BROKEN_ARCHIVE for a gzip that is truncated or damaged, and FileFailed.
    """

    def __init__(self, path: str | os.PathLike[str], size: int = _READ) -> None:
        self.packed = False
        self._chunks = self._read(path, size)

    def __next__(self) -> bytes:
        return next(self._chunks)

    def _read(self, path: str | os.PathLike[str], size: int) -> Iterator[bytes]:
        with opened(path, "rb") as raw:
            magic = raw.read(len(_GZIP_MAGIC))
            whole: Any = _Prefixed(magic, raw)
            self.packed = magic == _GZIP_MAGIC
            if not self.packed:
                while chunk := whole.read(size):
                    yield chunk
                return
            with gzip.GzipFile(fileobj=whole, mode="rb") as unpacked:
                # The bytes before a break are still given, so that an error can name the line.
                while chunk := unpacked.read1(size):
                    yield chunk


def read_chunks(path: str | os.PathLike[str]) -> Chunks:
    """The bytes of a file, unpacked if it is gzip."""
    return Chunks(path)


class _Prefixed:
    """A file whose first bytes have been read already, because a pipe cannot be rewound."""

    def __init__(self, first: bytes, rest: IO[bytes]) -> None:
        self._first, self._rest = first, rest

    def read(self, size: int) -> bytes:
        first, self._first = self._first[:size], self._first[size:]
        return first or self._rest.read(size)


BROKEN_ARCHIVE = (EOFError, gzip.BadGzipFile, zlib.error)
"""What `Chunks` raises for a truncated or corrupt gzip."""


def archive_error(name: str, line: int, broken: BaseException) -> Exception:
    """The TraceError for a gzip that breaks off in `line`."""
    error = TraceError(
        f"{name}:{line}: gzip: the archive is truncated or damaged ({broken}); copy or record it "
        "again"
    )
    error.file, error.line, error.field = name, line, "gzip"
    return error


def _checked(chunks: Chunks, error: Any) -> Any:
    """The error to raise for a bad line: that of a damaged gzip, if damage made the line bad.

    A flipped bit unpacks to garbage, and only the checksum at the gzip's end tells. So the rest is
    unpacked too, up to _MOST_CHECKED bytes, which takes seconds.
    """
    seen = 0
    try:
        while chunks.packed and seen < _MOST_CHECKED:
            seen += len(next(chunks))
    except BROKEN_ARCHIVE as broken:
        return archive_error(error.file, error.line, broken)
    except StopIteration:
        pass
    return error


def parsed(
    path: str | os.PathLike[str], parse: Callable[..., _Parsed], *more: Any, name: str = ""
) -> _Parsed:
    """The result of `parse(name, chunks, *more)`, a parser of glake._C, for the file. The name is
    the path if none is given.

    Raises TraceError for a line that no trace may hold or a broken gzip stream, FileFailed for a
    file that cannot be opened, and WrongType for a value that is no path or no name.
    """
    path, name = arguments.path("a trace", path), arguments.text("a trace's name", name)
    name, chunks = name or shown_name(path), read_chunks(path)
    try:
        return parse(name, chunks, *more)
    except BROKEN_ARCHIVE as broken:
        raise archive_error(name, getattr(broken, "trace_line", 1), broken) from broken
    except TraceError as error:
        raise _checked(chunks, error) from None


def shown_name(path: str | os.PathLike[str]) -> str:
    """A path as text that can always be printed."""
    return os.fspath(path).encode("utf-8", "replace").decode("utf-8")


class EventReader(Iterator[Event]):
    """The events of a trace in order, read when they are needed. So a file of any length takes
    memory for its live blocks only. ``header`` has the facts met so far.

    Args:
        path: as of read_events().
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._name = shown_name(arguments.path("a trace", path))
        self._stream = _native().TraceStream(self._name)
        self._events = self._read(path)

    @property
    def header(self) -> dict[str, str]:
        """The facts met so far."""
        return dict(self._stream.header)

    def __next__(self) -> Event:
        return next(self._events)

    def _read(self, path: str | os.PathLike[str]) -> Iterator[Event]:
        stream, chunks = self._stream, read_chunks(path)
        try:
            for chunk in chunks:
                yield from map(Event._make, stream.feed(chunk))
                stream.check()
            yield from map(Event._make, stream.finish())
            stream.check()
        except BROKEN_ARCHIVE as broken:
            raise archive_error(self._name, stream.line, broken) from broken
        except TraceError as error:
            raise _checked(chunks, error) from None


def read_events(path: str | os.PathLike[str]) -> EventReader:
    """Reads the events of a trace, plain or gzip, one by one. It takes memory for the live blocks
    only.

    The rules are those of `load_trace`, since one parser serves both.

    Args:
        path: of the trace.

    Raises:
        TraceError: a line that no trace may hold, once the events before it have been handed out.
        FileFailed: the file cannot be opened.
        WrongType: no path.
    """
    return EventReader(path)
