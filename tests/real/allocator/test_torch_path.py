"""The benchmark of the path through torch measures each side and the path without an allocator."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("side", ["glake", "pytorch"])
def test_a_round_of_a_side(real_python, monkeypatch, side):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "allocator")
    monkeypatch.delitem(sys.modules, "torch_path", raising=False)
    import torch_path

    rows = torch_path.by_torch(real_python, side, 0.02)
    pairs = {(row["case"], row["subject"]): row["rounds"]["pair_mean_ns"][0] for row in rows}
    for case in ("512 B - 1 MiB", "1 - 64 MiB", "512 B - 64 MiB"):
        # An allocator takes more time than the records around it.
        assert pairs[case, side] > pairs[case, "no allocator"] >= 0
        assert ((case, "glake's C interface") in pairs) == (side == "glake")
