"""A program that was linked with one minor version of libglake.so does not run with another."""

import os
import subprocess
from pathlib import Path

import glake

PROGRAMS = Path(__file__).parent / "programs" / "symbol_version"


def test_the_loader_refuses_another_version(tmp_path: Path) -> None:
    library = Path(glake.library_path())
    (tmp_path / "other").mkdir()

    def compile(*words: str) -> None:
        subprocess.run(["gcc", *words], cwd=PROGRAMS, check=True)

    def run(libraries: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [tmp_path / "program"],
            env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
            capture_output=True,
            text=True,
        )

    compile("program.c", f"-I{glake.include_path()}", str(library), "-o", str(tmp_path / "program"))
    compile(
        *("next.c", "-shared", "-fPIC", "-Wl,--version-script,next.map"),
        *(f"-Wl,-soname,{library.name}", "-o", str(tmp_path / "other" / library.name)),
    )
    assert run(library.parent).returncode == 0
    refused = run(tmp_path / "other")
    assert refused.returncode != 0 and "GLAKE_0.1" in refused.stderr
