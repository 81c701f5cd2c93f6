"""vLLM's engine on CPU, with KV blocks offloaded by glake, gives the same tokens and finds
prefixes again."""

import pytest

SPECS = [
    "GlakeOffloadingSpec",
    "GlakeOffloadingConnector",
    "GlakeTieringSpec:fs",
    "GlakeTieringSpec:glake",
]


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """The engine's output without glake, from one run."""
    told = {}

    def ask(vllm_job):
        if not told:
            folder = tmp_path_factory.mktemp("stock")
            told.update(vllm_job("vllm_engine", "none", folder, hooks=None))
        return told

    return ask


@pytest.mark.parametrize("spec", SPECS)
def test_tokens_are_the_same_and_come_from_host_memory(
    vllm_job, stock, tmp_path, spec: str
) -> None:
    expected = stock(vllm_job)
    told = vllm_job("vllm_engine", spec, tmp_path)
    assert told["tokens"] == expected["tokens"]
    first, second = told["cached"]
    assert first == 0 and second >= 64 * 12 > expected["cached"][1]  # 64 of each prompt's 96
    assert told["copies"] > 4 << 20 and told["failed"] == 0
    assert "RuntimeWarning: integration" not in told["stderr"]
    assert 0 < told["stored"] <= told["copies"]
    assert told["pinned"] >= 8 << 20  # all host memory that the job gives to blocks
    assert told["preempted"] > 0 < expected["preempted"]  # with the same tokens
    if ":" in spec:
        assert list((tmp_path / "tier").rglob("*.bin"))
    assert (told["files"] > 0) == spec.endswith(":glake")
    # Each tensor of the KV cache is one driver allocation.
    assert (told["contiguous"] > 0) == (spec == "GlakeOffloadingConnector")


def test_a_killed_worker_is_told_and_what_is_on_disk_serves_the_next(vllm_job, tmp_path) -> None:
    told = vllm_job("vllm_worker_killed", tmp_path, timeout=900)  # three engines
    assert told["error"] == "EngineDeadError" and told["left"] == []
    first, after, short = told["tokens"]
    assert first == after == short
    assert told["cached"][0] == 0 < told["cached"][2] < told["cached"][1]


def test_nothing_changes_without_a_spec(vllm_job, stock, tmp_path) -> None:
    told = vllm_job("vllm_engine", "none", tmp_path)
    assert told["tokens"] == stock(vllm_job)["tokens"]
    held = float(told["stderr"].rpartition("glake held ")[2].partition("%")[0])
    assert held > 95
