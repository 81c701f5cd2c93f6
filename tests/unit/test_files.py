"""Files that processes share are whole or absent, locked by one, and in one user's folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from glake import files
from glake.errors import FileFailed


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    files.write_whole(path, "first")
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnicodeEncodeError):
        files.write_whole(path, "\udcff")
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["kept"]
    umask = os.umask(0o027)
    try:
        files.write_whole(path, "second", mode=0o666)
    finally:
        os.umask(umask)
    assert path.read_text() == "second" and path.stat().st_mode & 0o777 == 0o640


def test_one_has_the_lock_until_it_is_closed(tmp_path: Path) -> None:
    held = files.lock(tmp_path / "lock")
    assert held is not None and files.lock(tmp_path / "lock") is None
    os.close(held)
    again = files.lock(tmp_path / "lock")
    assert again is not None
    os.close(again)


def test_a_folder_is_one_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    assert files.not_private(folder) == "" and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o750)
    assert "with mode 750" in files.not_private(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match="link"):
        files.not_private(tmp_path / "link")


def test_a_new_file_takes_the_place_of_the_old_one_at_the_end(tmp_path: Path) -> None:
    old, link = tmp_path / "old.gz", tmp_path / "link.gz"
    old.write_text("old")
    link.symlink_to(old)

    def break_off(path: Path) -> None:
        with files.replacing(str(path)) as place:
            Path(place).write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        break_off(link)
    assert old.read_text() == "old"
    with files.replacing(str(link)) as place:
        assert place.endswith(".gz")
        Path(place).write_text("new")
    assert old.read_text() == "new" and sorted(tmp_path.iterdir()) == [link, old]
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    with pytest.raises(KeyError):
        break_off(device)
    assert device.is_symlink()
    reading, writing = os.pipe()
    with files.replacing(f"/dev/fd/{writing}") as place:  # as /dev/stdout is in a pipeline
        assert place == f"/dev/fd/{writing}"
    os.close(reading)
    os.close(writing)
    gone = tmp_path / "gone" / "file"
    with pytest.raises(FileFailed) as failed, files.replacing(str(gone)) as place:
        open(place, "w").close()
    assert failed.value.filename == str(gone)
    with pytest.raises(OSError, match="input") as failed, files.replacing(str(old)) as place:
        raise FileNotFoundError(errno.ENOENT, "no input", "input")  # of another file
    assert failed.value.filename == "input"
