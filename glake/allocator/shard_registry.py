"""Where processes of one user find each other's shards: a private folder.

`$XDG_RUNTIME_DIR/glake-shards`, else `glake-shards-UID` in the directory for temporary files. A
shard has a KEY, a hash of its contents and of its GPU, and two files: KEY.json, with the texts by
which it can be opened, and KEY.lock, which a process locks while it looks for the shard and makes
it. So of several processes only one makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from glake import files
from glake.errors import BusyTimeout, InvalidArgument

PATIENCE_S = 300.0  # for another process that hashes and makes the same shard
_PAUSE_S = 0.005


class Registry:
    """The folder, which is made if there is none."""

    def __init__(self) -> None:
        """Raises InvalidArgument if the folder is not private to this user."""
        self.folder = files.user_folder("glake-shards")
        try:
            problem = files.not_private(self.folder)
        except OSError as error:
            problem = f"no private folder at {self.folder}: {error.strerror}"
        if problem:
            raise InvalidArgument(f"{problem}; remove it, or set XDG_RUNTIME_DIR")
        self.silent: set[str] = set()  # the processes that did not answer; see writer_of()

    @contextlib.contextmanager
    def locked(self, key: str, patience: float = PATIENCE_S) -> Iterator[None]:
        """Holds the lock of a key. Raises BusyTimeout if another process has it for so long, and
        FileFailed."""
        end = time.monotonic() + patience
        held = self._lock(key)
        while held is None:
            if time.monotonic() > end:
                raise BusyTimeout(
                    f"another process has held {self.folder / key}.lock for {patience:g} s while "
                    "it makes the same shard; is it stopped? End it, and try again"
                )
            time.sleep(_PAUSE_S)
            held = self._lock(key)
        try:
            yield
        finally:
            _unlock(held)

    def texts(self, key: str) -> list[str]:
        """The texts by which the shard may be opened, of processes that may be alive. A file that
        cannot be read has none."""
        try:
            found = json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        valid = isinstance(found, list) and all(isinstance(text, str) for text in found)
        return list(filter(_lives, found)) if valid else []

    def store(self, key: str, texts: list[str]) -> None:
        """Replaces the texts. The caller has the lock of the key. Raises FileFailed."""
        file = self.folder / f"{key}.json"
        try:
            if texts:
                files.write_whole(file, json.dumps(texts))
            else:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise files.failed(error, file) from error

    def tidy(self) -> None:
        """Removes the files of shards that only ended processes had. What cannot be removed, such
        as a folder with such a name, is in nobody's way."""
        for file in self.folder.glob("*.lock"):
            with contextlib.suppress(OSError):
                self._tidy(file)

    def _tidy(self, file: Path) -> None:
        key = file.stem
        held = None if self.texts(key) else self._lock(key)
        if held is None:
            return
        try:
            if not self.texts(key):
                for part in self.folder.glob(f"{key}.json.*.part"):  # of a killed process
                    part.unlink(missing_ok=True)
                self.store(key, [])
                file.unlink(missing_ok=True)
        finally:
            _unlock(held)

    def _lock(self, key: str) -> int | None:
        """The descriptor of the lock; None: another process has it. Raises FileFailed."""
        file = self.folder / f"{key}.lock"
        try:
            held = files.lock(file)
        except OSError as error:
            raise files.failed(error, file) from error
        if held is None:
            return None
        # tidy() of another process may have removed the file before it was locked here. A later
        # process would then lock a new one.
        try:
            found, there = os.fstat(held), os.stat(file)
        except FileNotFoundError:
            there = None
        if there is not None and os.path.samestat(found, there):
            return held
        _unlock(held)
        return None


def _unlock(held: int) -> None:
    """A child that was forked meanwhile has the descriptor too, so that closing it here would not
    end the lock."""
    fcntl.flock(held, fcntl.LOCK_UN)
    os.close(held)


def writer_of(text: str) -> str:
    """The number of the process that wrote the text, which is its second field, in hexadecimal; ""
    if it has none."""
    return (text.split(":") + [""])[1]


def _lives(text: str) -> bool:
    """Whether the process that wrote the text may be alive."""
    try:
        os.kill(int(writer_of(text), 16), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, IndexError, OverflowError):
        return False
    return True
