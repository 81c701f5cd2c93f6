"""The C++ tables are made from glake/config.py, the one place where an option is added."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glake import config

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import option_table  # noqa: E402


def test_a_new_option_of_the_core_is_a_field_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    new = config.Option(
        "NEW_WAY", "fast", config.Choice(("slow", "fast")), 'slow or "fast"', "how", "core"
    )
    monkeypatch.setitem(config.OPTIONS, "NEW_WAY", new)
    made = option_table.header()
    assert "enum class NewWayKind { kSlow, kFast };" in made
    assert "NewWayKind new_way = NewWayKind::kFast;" in made
    assert 'OptionRow{"new_way", "fast", "slow or \\"fast\\"", "how"}' in made
    others = made[made.index("kOtherOptions[]") :]
    assert '{"sim_seed", "0",' in others and '"new_way"' not in others


@pytest.mark.parametrize("reader", ["core", "simulator"])
@pytest.mark.parametrize(
    ("default", "parse", "field", "kind"),
    [
        ("4MiB", config.Size(), "Bytes new_way = 4194304;", 'Size{1, ""}'),
        ("none", config.Size(nothing="none"), "Bytes new_way = 0;", 'Size{1, "none"}'),
        ("", config.OrNone(config.Size(granule=True)), "Bytes new_way = 0;", 'Size{2097152, ""}'),
        ("1", config.parse_flag, "bool new_way = true;", "Flag{}"),
        ("3", config.Whole(0, 16), "int new_way = 3;", "Whole{0, 16}"),
        ("7", config.Whole(-1, 2**40), "int64_t new_way = 7;", f"Whole{{-1, {2**40}}}"),
        (
            "auto",
            config.Whole(0, 9, ("auto",)),
            'std::string new_way = "auto";',
            'WholeOrWord{0, 9, {"auto"}}',
        ),
        ("", config.OrNone(config.FileName(8)), "std::string new_way;", "FileName{8}"),
        (
            "",
            config.OrNone(config.CallTimes(2, 5.0)),
            "std::vector<CallTime> new_way;",
            "CallTimes{2, 5.0}",
        ),
    ],
)
def test_kinds_of_options(
    reader: str, default: str, parse: Any, field: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "NEW_WAY" if reader == "core" else "SIM_NEW_WAY"
    new = config.Option(name, default, parse, "what", "how", reader)
    monkeypatch.setitem(config.OPTIONS, name, new)
    if reader == "core" and default == "":  # the core parses the default, and "" is no value
        with pytest.raises(SystemExit, match="NEW_WAY"):
            option_table.header()
        return
    made = option_table.header()
    values = "OptionValues" if reader == "core" else "SimulatorValues"
    fields = made[made.index(f"struct {values} {{") :].partition("\n};")[0] + "\n"
    assert f"  // how\n  {field}\n" in fields
    assert f"&{values}::new_way, {kind});" in made


def test_the_header_of_simcuda_lists_its_options() -> None:
    """After a change of the table: python tools/option_table.py --simcuda."""
    text = option_table.SIMCUDA_HEADER.read_text()
    assert text == option_table.simcuda_header()
    for option in config.OPTIONS.values():
        listed = re.search(rf"^ \*   {option_table.short(option)}[: ]", text, re.MULTILINE)
        assert (listed is not None) == (option.reader == "simulator"), option.name


def test_a_kind_that_the_core_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    new = config.Option("NEW_WAY", "", str, "anything", "how", "core")
    monkeypatch.setitem(config.OPTIONS, "NEW_WAY", new)
    with pytest.raises(SystemExit, match="NEW_WAY.*option_kinds.h"):
        option_table.header()


def test_a_build_stops_at_the_one_line_that_says_so(tmp_path: Path) -> None:
    """The table has an option of a kind that the core cannot read. Nothing is compiled."""
    for name in ("setup.py", "tools/option_table.py", "glake/config.py", "glake/errors.py",
                 "glake/hints.py"):  # fmt: skip
        copy = tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_text((ROOT / name).read_text())
    table = tmp_path / "glake" / "config.py"
    table.write_text(table.read_text().replace('PATH, "a path", "record', 'str, "a path", "record'))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    said = (done.stdout + done.stderr).strip().splitlines()
    assert len(said) == 1 and said[0].startswith(
        "glake/config.py: the core reads no option of TRACE"
    )


def test_it_needs_neither_torch_nor_the_extension(tmp_path: Path) -> None:
    """CMake runs it before either is there. A second run leaves the file as it is."""
    command = [sys.executable, "-I", "-S", str(ROOT / "tools" / "option_table.py")]
    made = tmp_path / "base" / "option_table.h"
    subprocess.run([*command, str(made)], check=True)
    assert made.read_text() == option_table.header()
    before = made.stat().st_mtime_ns
    subprocess.run([*command, str(made)], check=True)
    assert made.stat().st_mtime_ns == before
