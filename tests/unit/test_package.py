"""What importing and linking must not do: no torch, no device, no CUDA libraries."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from own_python import output

import glake

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import docs_pages  # noqa: E402

PROGRAMS = Path(__file__).parent / "programs"
PACKAGE = Path(glake.__file__).parent


def test_import_brings_no_torch_and_no_native_code() -> None:
    others = ["torch", "numpy", "glake._C", *(f"glake.{name}" for name in glake._MODULES)]
    assert output(PROGRAMS / "imported.py", "glake", *others).strip() == "[]"


def test_native_module_opens_no_driver() -> None:
    assert output(PROGRAMS / "native_module.py", GLAKE_DRIVER="sim").split() == ["False"]


def test_autoload_module_imports_only_the_standard_library() -> None:
    assert output(PROGRAMS / "imported.py", "glake_autoload", "glake", "torch").strip() == "[]"


def test_every_public_name_resolves() -> None:
    for name in glake.__all__:
        assert getattr(glake, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = glake.nothing  # type: ignore[attr-defined]


def test_import_alone_is_enough_for_the_documented_modules() -> None:
    names = [name.removeprefix("glake.") for name in docs_pages.MODULES if name.count(".") == 1]
    assert {"metrics", "transfer", "integrations", "trace"} <= set(names)
    words = output(PROGRAMS / "modules_of_glake.py", *names).split()
    assert words == [f"glake.{name}" for name in names]


def test_entry_point_is_registered() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="torch.backends", name="glake")
    assert found.value == "glake_autoload:load"
    assert callable(found.load())


@pytest.mark.parametrize("pattern", ["lib/libglake.so", "lib/libsimcuda.so", "_C*.so"])
def test_nothing_links_cuda_or_torch(pattern: str) -> None:
    (library,) = PACKAGE.glob(pattern)
    listed = subprocess.run(
        ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
    )
    needed = [line for line in listed.stdout.splitlines() if "(NEEDED)" in line]
    assert needed
    assert not [line for line in needed if any(word in line for word in ("cuda", "torch", "c10"))]


def test_headers_that_adapters_are_compiled_with_have_what_they_include() -> None:
    headers = sorted((PACKAGE / "lib" / "include").rglob("*.h"))
    assert headers
    for header in headers:
        for name in re.findall(r'^#include "(.+)"', header.read_text(), re.MULTILINE):
            assert (header.parent / name).is_file(), f"{header.name} includes {name}"


def test_platforms_lie_beside_the_simulator() -> None:
    assert (PACKAGE / "lib" / "platforms.json").is_file()
