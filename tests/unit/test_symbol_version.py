"""A program that was linked with one minor version of libglake.so does not run with another."""

import os
import subprocess
from pathlib import Path

import glake


def test_the_loader_refuses_another_version(tmp_path: Path) -> None:
    library = Path(glake.library_path())
    (tmp_path / "program.c").write_text(
        "#include <glake/glake.h>\nint main(void) { return glake_version()[0] == 0; }\n"
    )
    (tmp_path / "next.c").write_text('const char* glake_version(void) { return "0.2.0"; }\n')
    (tmp_path / "next.map").write_text("GLAKE_0.2 { global: glake_*; };\n")
    other = tmp_path / "other"
    other.mkdir()

    def compile(*words: str) -> None:
        subprocess.run(["gcc", *words], cwd=tmp_path, check=True)

    def run(libraries: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [tmp_path / "program"],
            env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
            capture_output=True,
            text=True,
        )

    compile("program.c", f"-I{glake.include_path()}", str(library), "-o", "program")
    compile(
        *("next.c", "-shared", "-fPIC", "-Wl,--version-script,next.map"),
        *(f"-Wl,-soname,{library.name}", "-o", f"other/{library.name}"),
    )
    assert run(library.parent).returncode == 0
    refused = run(other)
    assert refused.returncode != 0 and "GLAKE_0.1" in refused.stderr
