"""A script that fails on a GPU fails here with the same exception.

The first line of each script's docstring is the exception's class and, after a colon, a regular
expression for its text. Below it is the documentation of the error. Its quotes of the CUDA Runtime
API must be in the headers of the installed toolkit, which have the same text.
"""

import ast
import os
import re
import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("glake.dryrun.libraries")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forking import JUDGED, Outcome, run_cases  # noqa: E402

SCRIPTS = sorted(Path(__file__).with_name("scripts").glob("*.py"))
HEADERS = [
    Path("/usr/local/cuda/include"),
    Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "include",
]


def documented(script: Path) -> str:
    return ast.get_docstring(ast.parse(script.read_text())) or ""


@cache
def outcomes(python: str, allocator: str) -> dict[str, Outcome]:
    return run_cases(python, allocator, SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
@pytest.mark.parametrize("allocator", JUDGED)
def test_script_fails(real_python, allocator, script):
    kind, _, phrase = documented(script).partition("\n")[0].partition(": ")
    outcome = outcomes(os.path.abspath(real_python), allocator)[script.stem]
    assert outcome["kind"] == kind, outcome["log"]
    assert re.search(phrase, outcome["text"]), outcome["text"]


def letters(text: str) -> str:
    return "".join(re.findall(r"\w+", re.sub(r"\\[a-z]+\b", " ", text))).lower()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_cuda_is_quoted_right(script):
    folder = next((path for path in HEADERS if (path / "cuda_runtime_api.h").exists()), None)
    if folder is None:
        pytest.skip("left out: no CUDA headers are installed")
    text = documented(script)
    if "CUDA Runtime API" not in text:
        assert "https://docs.pytorch.org/" in text
        return
    headers = letters("".join((folder / name).read_text() for name in
                            ("cuda_runtime_api.h", "driver_types.h", "cuda.h")))  # fmt: skip
    from_there = text[text.index("CUDA Runtime API") :].replace("\n", " ")
    quotes = [letters(q) for q in re.findall(r'"([^"]{20,})"', from_there)]
    assert any(quote in headers for quote in quotes), quotes
