"""Where compiled code is kept. It will be executed, so nobody else may have put it there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from glake.allocator import adapter_build
from glake.errors import AdapterBuildError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which not even root can make a folder, because ~/.cache is a file."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    (home / ".cache").write_text("")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "GLAKE_JIT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return home


def private(home: Path) -> Path:
    return home.parent / "tmp" / f"glake-{os.getuid()}"


def test_a_home_that_can_be_written(home: Path) -> None:
    (home / ".cache").unlink()
    assert adapter_build._cache_directory() == home / ".cache" / "glake"
    assert not private(home).exists()


def test_a_home_that_cannot(home: Path) -> None:
    assert adapter_build._cache_directory() == private(home)
    assert private(home).stat().st_mode & 0o777 == 0o700
    assert adapter_build._cache_directory() == private(home)


def test_what_others_can_write_is_refused(home: Path) -> None:
    private(home).mkdir(mode=0o700)
    private(home).chmod(0o777)
    with pytest.raises(AdapterBuildError, match="alone; set GLAKE_JIT_DIR"):
        adapter_build._cache_directory()
    private(home).rmdir()
    elsewhere = home / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    private(home).symlink_to(elsewhere)
    with pytest.raises(AdapterBuildError, match="folder of this user's alone"):
        adapter_build._cache_directory()


def test_a_folder_that_is_given_is_the_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = home / ".cache" / "there"
    monkeypatch.setenv("GLAKE_JIT_DIR", str(given))
    with pytest.raises(AdapterBuildError, match=f"cannot write in {given}.*set GLAKE"):
        adapter_build._cache_directory()
    assert not private(home).exists()
