"""Files that processes share: locked, written whole or not at all, in private folders of one
user."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from glake.errors import FileFailed


def lock(file: Path) -> int | None:
    """The descriptor of the locked file, which must stay open. None: another process has the
    lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    held = os.open(file, flags, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


class SocketFile:
    """The path of a Unix socket that this process has bound.

    Somebody may remove the path, and another process may then bind a socket there. The file system
    gives a socket's number to no other file while the socket is open. So ask before it is closed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Takes the socket that is there now, if any."""
        self._path = path
        self._own = self._number()

    def is_there(self) -> bool:
        """Whether the path still leads to this process's socket."""
        return self._own is not None and self._number() == self._own

    def remove(self) -> None:
        """Removes the path, unless it is another's."""
        if self.is_there():
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _number(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def write_whole(file: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Writes a file whole or not at all, first under a temporary name. `mode` is reduced by the
    umask."""
    data = content.encode() if isinstance(content, str) else content
    part = file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(part, flags, mode), "wb") as stream:
            stream.write(data)
        os.replace(part, file)
    except OSError as error:
        if error.filename is None:  # a write does not name its file
            error.filename = os.fspath(file)
        raise
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """The path to write to: a new file that takes the place of `path` at the end, or is removed if
    the block fails. A pipe or a device is written to as it is. Raises FileFailed, which names
    `path`, if the new file cannot be made or written."""
    # Not of its real path, because that of /dev/stdout may be no path.
    if os.path.exists(path) and not os.path.isfile(path):
        yield path
        return
    try:
        place = os.path.realpath(path)
    except ValueError as error:  # no file has such a name
        raise failed(error, path) from None
    packed = ".gz" if path.endswith(".gz") else ""  # by which writers know a gzip
    part = f"{place}.{secrets.token_hex(8)}.part{packed}"
    try:
        yield part
        os.replace(part, place)
    except OSError as error:
        if error.filename != part:
            raise
        raise failed(error, path) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def user_folder(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """The folder in which processes of this user meet: `name` in $XDG_RUNTIME_DIR, else `name`-UID
    in the folder for temporary files. It may not exist, and not_private() must check it."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_RUNTIME_DIR", "")
    if base.startswith("/") and os.path.isdir(base):
        return Path(base) / name
    return Path(tempfile.gettempdir()) / f"{name}-{os.geteuid()}"


def failed(error: OSError | ValueError, path: str | os.PathLike[str]) -> FileFailed:
    """The error of a call that names a file, as glake's. A ValueError: no file has such a name."""
    number, why = getattr(error, "errno", None), getattr(error, "strerror", None)
    name = os.fspath(path)
    if why is None and "\0" in name:
        why = "a file's name cannot have a NUL character; leave it out"
    return FileFailed(number or errno.EINVAL, why or str(error), name)


def not_private(folder: Path) -> str:
    """Makes the folder if there is none. Returns why it is not private to this user, or "" if it
    is."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(opened)
    finally:
        os.close(opened)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and not mode & 0o077:
        return ""
    return (
        f"{folder} belongs to user {found.st_uid} with mode {mode:o}: it must be user "
        f"{os.geteuid()}'s alone (0700)"
    )
