"""The environment of a dry run, and the lists of what the stand-ins have."""

import ctypes
import re

import pytest

from glake import library_path
from glake.dryrun import libraries
from glake.errors import DriverAbsent, InvalidArgument
from tools import cuda_symbols


def test_preloads_by_full_path_and_keeps_what_was_there():
    given = {"LD_PRELOAD": "/x/libfirst.so", "LD_LIBRARY_PATH": "/y", "OTHER": "1"}
    made = libraries.environment(given)
    first, *rest = made["LD_PRELOAD"].split(":")
    assert first == "/x/libfirst.so" and made["OTHER"] == "1"
    assert str(libraries.folder() / "libcudart.so.13") in rest
    assert all(path.startswith("/") for path in rest)
    assert made["LD_LIBRARY_PATH"] == f"{libraries.folder()}:/y"
    assert given["LD_PRELOAD"] == "/x/libfirst.so"


def test_cuda_12_has_its_own_names():
    names = {path.name for path in libraries.libraries(12)}
    assert {"libcudart.so.12", "libcublas.so.12", "libcuda.so.1"} <= names
    assert not any(name.startswith("libcudart.so.13") for name in names)


def test_refuses_what_it_has_not(monkeypatch, tmp_path):
    with pytest.raises(InvalidArgument, match="CUDA 11 has no stand-ins"):
        libraries.environment({}, cuda=11)
    monkeypatch.setattr(libraries, "library_path", lambda: tmp_path / "libglake.so")
    with pytest.raises(DriverAbsent, match="make build"):
        libraries.environment({})
    (tmp_path / "cuda").mkdir()
    with pytest.raises(DriverAbsent, match="lacks libcuda.so.1"):
        libraries.environment({})


def test_refuses_a_path_no_preload_list_can_hold(monkeypatch, tmp_path):
    there = tmp_path / "a b" / "cuda"
    there.mkdir(parents=True)
    for path in libraries.libraries():
        (there / path.name).touch()
    monkeypatch.setattr(libraries, "library_path", lambda: there.parent / "libglake.so")
    with pytest.raises(InvalidArgument, match="colon or a blank"):
        libraries.environment({})


def test_the_drivers_stand_in_hides_nothing_of_the_simulator():
    simulator = ctypes.CDLL(str(library_path().with_name("libsimcuda.so")))
    hidden = [name for name in cuda_symbols.listed("cuda") if hasattr(simulator, name)]
    assert not hidden, f"simcuda has {hidden} now: take them out of lists/cuda.def"


def test_every_listed_name_is_exported_and_harmless_ones_say_why():
    for path in sorted(cuda_symbols.LISTS.glob("*.def")):
        text = path.read_text()
        for line in text.splitlines():
            assert line.startswith("//") or re.fullmatch(
                r"(WRITTEN|LAUNCH|LAUNCH_TO_DEVICE|UNSUPPORTED|UNSUPPORTED_POINTER)\(\w+\)"
                r'|HARMLESS\(\w+, ".{10,}"\)',
                line,
            ), f"{path.name}: {line}"
        (file,) = [
            each for each in libraries.libraries() if each.name.startswith(f"lib{path.stem}.so")
        ]
        library = ctypes.CDLL(str(file))
        absent = [name for name in cuda_symbols.listed(path.stem) if not hasattr(library, name)]
        assert not absent, f"{file.name} lacks {absent}"
