"""tools/preset_bounds.py prints rows for the platforms file, as CONTRIBUTING's recipe says."""

import json
import sys
from pathlib import Path

import pytest

from glake.platform_file import preset_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import preset_bounds  # noqa: E402


@pytest.mark.parametrize("name", ["dgx_a100", "hgx_h100_h200", "a10_l40s_x8"])
def test_rows_are_those_of_the_presets(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    preset_bounds.main([str(preset_file()), name], standalone_mode=False)
    printed = json.loads("{" + capsys.readouterr().out + "}")["bounds"]
    kept = json.loads(preset_file().read_text())[name]["bounds"]
    common = printed.keys() & kept.keys()
    assert {"h2d local", "d2h inter", "all h2d local", "bidir h2d+d2h"} <= common
    for row in common:
        assert printed[row] == pytest.approx(kept[row], rel=0.005), row
    # The words in brackets, and those after "two h2d", are only for readers.
    pairs = {row.split()[1] for row in kept if row.startswith("p2p")}
    assert {row.split()[1] for row in printed if row.startswith("p2p")} == pairs
