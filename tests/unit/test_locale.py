"""In a locale with a decimal comma glake reads and prints the same as in the C locale.

The test writes glibc's file of such a locale itself, so that no package need be installed. Where
localedef is installed, the test also runs in a whole de_DE.UTF-8.
"""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
TRACE = "glake-trace 1\n# job: locale\na 1 3145728 0\na 2 1717986 0\nf 1\nf 2\ns 1\n"


def write_numeric(folder: Path) -> None:
    """glibc's LC_NUMERIC file of a locale: a magic number, the offsets of its parts, the parts."""
    parts = [b",\0", b".\0", b"\3\3\0", struct.pack("<I", ord(",")), struct.pack("<I", ord("."))]
    parts.append(b"UTF-8\0")
    data, places = b"", []
    for part in parts:
        data += b"\0" * (-len(data) % 4)
        places.append(8 + 4 * len(parts) + len(data))
        data += part
    head = struct.pack(f"<{2 + len(parts)}I", 0x20031115 ^ 1, len(parts), *places)
    folder.mkdir(parents=True)
    (folder / "LC_NUMERIC").write_bytes(head + data)


@pytest.fixture(scope="module", params=["written", "de_DE.UTF-8"])
def comma(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The variables that choose a locale with a decimal comma."""
    folder = tmp_path_factory.mktemp("locales")
    if request.param == "written":
        write_numeric(folder / "comma")
        return {"LOCPATH": str(folder), "LC_NUMERIC": "comma"}
    localedef = shutil.which("localedef")
    if localedef is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("no localedef, or no sources of de_DE: the written locale is tested")
    subprocess.run([localedef, "-i", "de_DE", "-f", "UTF-8", folder / request.param], check=True)
    return {"LOCPATH": str(folder), "LC_ALL": request.param}


def told(when: str, chosen: dict[str, str], folder: Path) -> str:
    """What the job prints, in the locale that `chosen` names."""
    import glake

    named = ("GLAKE_", "LC_", "LANG", "LOCPATH")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(named)}
    (folder / "job.trace").write_text(TRACE)
    variables = {
        **kept,
        "GLAKE_DRIVER": "sim",
        "GLAKE_LIMIT": "0.9",
        "GLAKE_SIM_MEMORY": "1.5GiB",
        "PLATFORMS": str(glake.library_path().with_name("platforms.json")),
        "TRACE": str(folder / "job.trace"),
        "WRITTEN": str(folder / "written.trace"),
        "HALF": "0,5" if chosen else "0.5",
        "PYTHONUTF8": "1",
        **chosen,
    }
    program = [sys.executable, PROGRAMS / "locale_job.py", when]
    done = subprocess.run(program, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("when", ["before", "after"])
def test_all_is_read_and_printed_as_without_a_locale(
    when: str, comma: dict[str, str], tmp_path: Path
) -> None:
    plain = told(when, {}, tmp_path)
    assert '"limit": "0.9"' in plain and '"view_budget": "2.5"' in plain
    assert "1.60 GiB" in plain and '"rate": 12.5' in plain and "s 1" not in plain
    assert told(when, comma, tmp_path) == plain
