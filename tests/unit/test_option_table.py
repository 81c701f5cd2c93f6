"""The core's table is made from glake/config.py: an option is added there alone."""

import subprocess
import sys
from pathlib import Path

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


def test_a_kind_that_the_core_cannot_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    new = config.Option("NEW_WAY", "", str, "anything", "how", "core")
    monkeypatch.setitem(config.OPTIONS, "NEW_WAY", new)
    with pytest.raises(SystemExit, match="NEW_WAY.*option_kinds.h"):
        option_table.header()


def test_it_needs_neither_torch_nor_the_extension(tmp_path: Path) -> None:
    """As CMake runs it, before either is there; a second run leaves the file as it is."""
    command = [sys.executable, "-I", "-S", str(ROOT / "tools" / "option_table.py")]
    made = tmp_path / "base" / "option_table.h"
    subprocess.run([*command, str(made)], check=True)
    assert made.read_text() == option_table.header()
    before = made.stat().st_mtime_ns
    subprocess.run([*command, str(made)], check=True)
    assert made.stat().st_mtime_ns == before
