"""The benchmark of curves measures PyTorch's own allocator. Each case runs at its smallest n."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_pytorchs_own_allocator_is_measured(real_python, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "allocator")
    monkeypatch.delitem(sys.modules, "curves", raising=False)
    import curves

    rows = curves.by_torch(real_python, ["--rounds", "1", "--most", "1000"])
    assert {row["subject"] for row in rows} == {"pytorch"}
    assert len({row["case"].split(":")[0] for row in rows}) == 6
    assert all(row["rounds"]["ns"][0] >= 0 for row in rows), rows
