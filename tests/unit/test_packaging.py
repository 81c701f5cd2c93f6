"""The source package is whole, libraries export the committed names, and each build of torch finds
its adapter in a wheel."""

import subprocess
import sys
from pathlib import Path

import pytest

from glake.allocator import adapter_build
from glake.errors import AdapterBuildError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import abi  # noqa: E402
import wheels  # noqa: E402


def test_the_source_package_has_every_tracked_file(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("left out: this is no git checkout, whose files could be compared")
    tree = wheels.unpacked(wheels.source_package(tmp_path / "out"), tmp_path / "tree")
    tracked = [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    assert len(tracked) > 500
    assert [name for name in tracked if not (tree / name).is_file()] == []


@pytest.mark.parametrize("library", abi.LIBRARIES)
def test_exports_are_the_committed_ones(library: str) -> None:
    assert abi.changes(library, abi.exported(ROOT / "glake" / "lib" / library)) == []


def test_a_changed_export_is_told() -> None:
    names = [*abi.committed("libglake.so").read_text().split(), "glake_new"]
    names.remove("glake_malloc")
    assert abi.changes("libglake.so", names) == [
        "libglake.so no longer exports glake_malloc",
        "libglake.so exports glake_new, as new",
    ]


@pytest.fixture
def carrying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installation that may carry adapters, on a machine without a compiler."""
    folder = tmp_path / "adapters"
    folder.mkdir()
    monkeypatch.setattr(adapter_build, "CARRIED", folder)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("GLAKE_JIT_DIR", str(tmp_path / "jit"))
    return folder


def test_a_carried_adapter_needs_no_compiler(carrying: Path) -> None:
    ready = carrying / adapter_build._carried_name("emulation")
    ready.touch()
    assert adapter_build.build("emulation") == ready


def test_an_adapter_of_another_torch_is_not_taken(
    carrying: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = adapter_build.installed_torch()
    (carrying / adapter_build._carried_name("emulation")).touch()
    other = adapter_build.Torch(here.root, here.version, "another commit", here.cuda)
    monkeypatch.setattr(adapter_build, "installed_torch", lambda: other)
    with pytest.raises(AdapterBuildError) as refused:
        adapter_build.build("emulation")
    for word in ("no-such-compiler", "glake build-adapter", f"adapters of torch: {here.version}"):
        assert word in str(refused.value)


def test_an_adapter_of_other_sources_is_not_taken(
    carrying: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (carrying / adapter_build._carried_name("emulation")).touch()
    monkeypatch.setattr(adapter_build, "_sources", lambda: b"changed")
    with pytest.raises(AdapterBuildError, match="no C\\+\\+ compiler"):
        adapter_build.build("emulation")


def test_what_is_loaded_before_torch_is_carried_only_beside_it(
    carrying: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = carrying / adapter_build._carried_name(adapter_build.FAKE_CUDA)
    ready.touch()
    assert adapter_build._carried(adapter_build.FAKE_CUDA) is None  # glake is a checkout here
    beside = adapter_build.installed_torch().root.parent / "glake" / "csrc"
    monkeypatch.setattr(adapter_build, "SOURCES", beside)
    monkeypatch.setattr(adapter_build, "_sources", lambda: b"as before")
    again = carrying / adapter_build._carried_name(adapter_build.FAKE_CUDA)
    again.touch()
    assert adapter_build._carried(adapter_build.FAKE_CUDA) == again
