"""vLLM's elastic KV cache, without vLLM: which blocks have memory, where it lies, and the hooks."""

from __future__ import annotations

import re
import types
import warnings
from pathlib import Path

import pytest

from glake.integrations import vllm_elastic

STORED = Path(__file__).resolve().parent / "stored"


@pytest.mark.parametrize("seed", range(3))
def test_free_blocks_have_memory_as_they_should(program, seed) -> None:
    assert program("vllm_elastic_blocks", str(seed)).stdout == "kept\n"


def test_memory_is_where_blocks_lie_and_comes_on_all_ranks_or_none(program) -> None:
    done = program("vllm_elastic_memory", GLAKE_SIM_MEMORY="256MiB")
    assert done.stdout == "backed\n"


def test_hooks_serve_those_who_ask_and_refuse_what_they_do_not_know(program) -> None:
    done = program("vllm_elastic_hooks")
    assert done.stdout == "hooked\n" and "Warning" not in done.stderr


def test_what_the_elastic_cache_relies_on_is_in_the_tried_version() -> None:
    """Each function that is replaced or stood in for has its parameters of vLLM 0.33.0."""
    text = (STORED / "vllm_0.33.0.txt").read_text()
    stored = dict(re.findall(r"^\S+:(\S+) \((.*)\)$", text, re.MULTILINE))
    assert {name: stored.get(name) for name in RELIED_ON} == RELIED_ON


RELIED_ON = {
    "EngineCore._initialize_kv_caches": "self, vllm_config",
    "EngineCore._initialize_effective_attention_block_size": "self",
    "Worker.initialize_from_config": "self, kv_cache_config",
    "Worker.compile_or_warm_up_model": "self",
    "Worker.shutdown": "self",
    "Scheduler.schedule": "self, throttle_prefills=False",
    "Scheduler.update_from_output": "self, scheduler_output, model_runner_output",
    "BlockPool._maybe_evict_cached_block": "self, block",
    "BlockPool.get_num_free_blocks": "self",
    "FreeKVCacheBlockQueue.popleft_n": "self, n",
    "FreeKVCacheBlockQueue.popleft": "self",
    "FreeKVCacheBlockQueue.remove": "self, block",
    "FreeKVCacheBlockQueue.append": "self, block",
    "FreeKVCacheBlockQueue.append_n": "self, blocks",
    "FreeKVCacheBlockQueue.prepend_n": "self, blocks",
    "FreeKVCacheBlockQueue.get_all_free_blocks": "self",
}


def test_a_job_that_cooperates_is_warned(monkeypatch):
    """Its headroom would go to other processes."""
    asked = {"glake": {"elastic_kv": True}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vllm_elastic.read(asked) is not None
    options = [{"name": "cooperate", "value": "1"}]
    monkeypatch.setattr(vllm_elastic, "_C", types.SimpleNamespace(options=lambda: options))
    assert vllm_elastic.read({"glake": {"elastic_kv": False}}) is None
    with pytest.warns(RuntimeWarning, match="headroom of an engine"):
        assert vllm_elastic.read(asked) is not None
