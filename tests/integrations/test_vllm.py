"""vLLM's KV blocks moved by glake, without vLLM: addresses, jobs, and memory that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

STORED = Path(__file__).resolve().parent / "stored"


@pytest.mark.parametrize("seed", range(3))
def test_blocks_lie_where_vllm_looks_for_them(program, seed) -> None:
    assert program("vllm_worker", str(seed)).stdout == "moved\n"


def test_a_tier_of_files_keeps_whole_blocks_only(program, tmp_path) -> None:
    assert program("vllm_tier", tmp_path).stdout == "stored\n"


def test_what_a_job_may_name(program) -> None:
    assert program("vllm_memory").stdout == "named\n"


@pytest.mark.parametrize("version", ["vllm", "vllm_0.33.0"])
def test_signatures_are_vllms(program, version) -> None:
    assert program("vllm_signatures", str(STORED / f"{version}.txt")).stdout == "19\n"
