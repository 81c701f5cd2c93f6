"""The search of benchmarks/end_to_end.py, on jobs whose need of memory is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PATH = Path(__file__).parents[3] / "benchmarks" / "end_to_end.py"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("end_to_end", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "end_to_end", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("guess", [1, 5, 19, 37, 117, 300])
@pytest.mark.parametrize("most", [0, 1, 6, 19, 20, 23, 130, 10**9])
def test_the_largest_batch_is_found_and_bracketed(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, guess: int, most: int
) -> None:
    tried: list[int] = []

    def fits(batch: int, *_: Any) -> Any:
        tried.append(batch)
        return SimpleNamespace(fits=batch <= most, batch=batch)

    monkeypatch.setattr(benchmark, "fits", fits)
    found = benchmark.search(24, "native", 8, guess)
    fitting = [batch for batch in benchmark.BATCHES if batch <= most]
    beyond = [batch for batch in benchmark.BATCHES if batch > most]
    assert found.largest == (fitting[-1] if fitting else 0)
    assert found.refused == (beyond[0] if beyond else 0)
    assert (found.fits.batch if fitting else found.fits) == (found.largest if fitting else None)
    assert len(tried) == len(set(tried)) and len(tried) <= 14  # no batch is run twice


def test_batches_grow_by_about_five_percent(benchmark: Any) -> None:
    pairs = zip(benchmark.BATCHES, benchmark.BATCHES[1:], strict=False)
    assert all(low < high <= 1.05 * low + 1.1 for low, high in pairs)


def test_what_is_predicted_is_counted_without_torch(benchmark: Any) -> None:
    assert benchmark.tokens_a_step(4, 2) > 4 * 64
