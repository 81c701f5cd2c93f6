"""tools/named_files.py: which words it takes for names of files, and which of these exist."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import named_files  # noqa: E402


def found(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text)
    return list(named_files.missing(path))


@pytest.mark.parametrize(
    "name",
    [
        "tools/layers.py", "docs/design.md", "simcuda/driver/options.h", "driver/options.h",
        "heap/search.cpp", "base/option_table.h", "conformance/kernels_ptx.h", "tests/left.toml",
        "options.cpp", "cuda.h", "tools/NAME.py", "glake/csrc/replay/*_policy.h",
    ],
)  # fmt: skip
def test_names_that_are_there(name: str) -> None:
    assert named_files.is_there(name, ROOT)


@pytest.mark.parametrize(
    "name",
    [
        "tools/layer.py", "docs/designs.md", "simcuda/options.h", "heap/searches.cpp",
        "driver/options.hpp", "no_such.cpp", "no_such_folder/NAME.py", "tests/left.json",
    ],
)  # fmt: skip
def test_names_that_are_not_there(name: str) -> None:
    assert not named_files.is_there(name, ROOT)


@pytest.mark.parametrize(
    ("name", "in_c", "counts"),
    [
        ("tools/gone.py", False, True),
        ("allocator/gone.py", False, True),
        ("heap/gone.cpp", False, True),
        ("driver/gone.h", True, True),
        ("gone.h", True, True),
        ("gone.h", False, False),
        ("gone.py", True, False),
        ("torch/cuda/memory.py", False, False),
        ("heap/gone.py", False, False),
        ("c10/core/Allocator.h", True, False),
        ("results/gone.json", False, False),
    ],
)
def test_names_that_could_be_of_this_repository(name: str, in_c: bool, counts: bool) -> None:
    assert named_files.counts(name, in_c) == counts


def test_comments_of_c_are_read_and_its_code_is_not(tmp_path: Path) -> None:
    source = [
        '#include "gone.h"',
        "// As heap/gone.cpp says, and gone.h.",
        'const char* kFile = "heap/gone.cpp";  // not https://x.org/heap/gone.cpp',
        "/* Two lines:",
        " * tools/gone.py::test, /usr/tools/gone.py, ~/tools/gone.py, tools/gone.py.in */",
        "// heap/{gone,search}.cpp, heap/gone.cpp.",
    ]
    wrong = [(2, "heap/gone.cpp"), (2, "gone.h"), (5, "tools/gone.py"), (6, "heap/gone.cpp")]
    assert found(tmp_path / "a.cpp", "\n".join(source)) == wrong
    assert found(tmp_path / "b.cpp", "// nothing.h") == [(1, "nothing.h")]


def test_comments_and_docstrings_of_python_are_read(tmp_path: Path) -> None:
    source = [
        '"""What it is.',
        "",
        'See tools/gone.py."""',
        "",
        "def f() -> None:",
        '    "docs/gone.md"',
        '    x = "tools/gone.py"  # as tools/lost.py, tools/layers.py',
    ]
    wrong = [(3, "tools/gone.py"), (6, "docs/gone.md"), (7, "tools/lost.py")]
    assert sorted(found(tmp_path / "a.py", "\n".join(source))) == wrong


def test_pages_and_other_comments_are_read(tmp_path: Path) -> None:
    assert found(tmp_path / "a.md", "\n[x](docs/gone.md#y), `tools/*.py`") == [(2, "docs/gone.md")]
    source = "[tools.gone.py]\n# as tools/gone.py"
    assert found(tmp_path / "a.toml", source) == [(2, "tools/gone.py")]


def test_a_name_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.h"
    file.write_text("\n// heap/gone.h\n")
    assert named_files.main([str(file)]) == 1
    assert capsys.readouterr().out == f"{file}:2: there is no heap/gone.h\n"
    file.write_text("// heap/search.h\n")
    assert named_files.main([str(file)]) == 0
