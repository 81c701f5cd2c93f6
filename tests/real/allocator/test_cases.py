"""Runs cases/*.py by PyTorch's native allocator, by its expandable segments, and by glake.

Every difference is in DIFFERENCES, and explained in docs/pytorch.md ("Differences").
"""

import os
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("glake.dryrun.libraries")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forking import JUDGED, Outcome, cases_in, run_cases  # noqa: E402

FILES = sorted(Path(__file__).with_name("cases").glob("*.py"))
CASES = [name for file in FILES if file.stem != "common" for name in cases_in(file)]
OOM, WRONG, FAULT = "torch.OutOfMemoryError", "AssertionError", "torch.AcceleratorError"
# (allocator, case): the kind of failure, and a phrase of its text.
DIFFERENCES: dict[tuple[str, str], tuple[str, str]] = {
    ("expandable", "graphs.a_graphs_memory_is_given_back_after_its_replays"): (
        FAULT,
        "an illegal memory access",
    ),
    ("expandable", "pools.a_pool_may_lend_when_memory_runs_out"): (OOM, "Tried to allocate"),
    (
        "native",
        "using_streams.another_gpus_default_stream_keeps_a_recorded_block",
    ): (WRONG, ""),
    (
        "expandable",
        "using_streams.another_gpus_default_stream_keeps_a_recorded_block",
    ): (WRONG, ""),
    ("glake", "graphs.a_capture_may_reuse_what_it_has_joined"): (WRONG, ""),
    ("glake", "graphs.streams_of_a_capture_have_segments_of_their_own"): (WRONG, "'stream': 0"),
    ("glake", "using_streams.a_recorded_block_is_given_again_once_the_work_is_done"): (WRONG, ""),
}


@cache
def outcomes(python: str, allocator: str, file: Path) -> dict[str, Outcome]:
    return run_cases(python, allocator, [file])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("allocator", JUDGED)
def test_case(real_python, allocator, case):
    file = next(file for file in FILES if file.stem == case.split(".")[0])
    outcome = outcomes(os.path.abspath(real_python), allocator, file)[case]
    kind, phrase = DIFFERENCES.get((allocator, case), ("", ""))
    assert outcome["kind"] == kind, outcome["log"]
    assert phrase in outcome["text"], outcome["log"]
