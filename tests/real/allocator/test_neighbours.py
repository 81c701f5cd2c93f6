"""Features of GPU memory that other packages need: legacy IPC, allocator settings, pausing."""

import os
from pathlib import Path

import pytest

PROGRAMS = "../allocator/programs"
GLAKE = {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}
STORED = Path(__file__).resolve().parents[2] / "integrations" / "stored"


@pytest.mark.parametrize("pools", ["stitched", "legacy"])
def test_private_pools_are_stitched_or_legacy(real, pools, monkeypatch):
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    asked = GLAKE | {"GLAKE_PRIVATE_POOLS": pools}
    assert "pools ok" in real(f"{PROGRAMS}/legacy_pools", pools, **asked).stdout


def test_what_the_user_says_of_graph_registration_stays(real):
    asked = GLAKE | {"NCCL_GRAPH_REGISTER": "1"}
    assert "pools ok" in real(f"{PROGRAMS}/legacy_pools", "stitched", "kept", **asked).stdout


def test_packages_that_look_for_expandable_segments(real, monkeypatch):
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    conf = "expandable_segments:True,garbage_collection_threshold:0.75"
    asked = GLAKE | {"PYTORCH_CUDA_ALLOC_CONF": conf}
    done = real(f"{PROGRAMS}/looking_for_virtual_memory", **asked)
    assert "looking ok" in done.stdout


def test_torch_takes_buffers(real):
    assert "buffers ok" in real(f"{PROGRAMS}/buffers", **GLAKE).stdout


def test_torch_memory_saver_by_glake(real):
    done = real(f"{PROGRAMS}/memory_saver", str(STORED / "memory_saver.txt"), **GLAKE)
    assert "saved" in done.stdout


def test_vllm_sleeps_by_glake(real):
    assert "woken" in real(f"{PROGRAMS}/vllm_sleep", GLAKE_SIM_MEMORY="1GiB", **GLAKE).stdout


def test_streams_of_others_may_be_destroyed(real):
    assert "destroyed" in real(f"{PROGRAMS}/external_streams", **GLAKE).stdout


def test_equal_models_are_held_once(real):
    assert "deduplicated True" in real(f"{PROGRAMS}/deduplication", **GLAKE).stdout


def test_keys_and_values_grow_in_place(real):
    assert "stay apart" in real(f"{PROGRAMS}/kv_cache", **GLAKE).stdout


def test_processes_give_back_what_another_needs(real):
    machine = f"cooperation{os.getpid()}"  # so that two suites at once share no machine
    asked = {"GLAKE_COOPERATE": "1", "GLAKE_SIM_MACHINE": machine, "GLAKE_SIM_MEMORY": "512MiB"}
    assert "changed hands" in real(f"{PROGRAMS}/cooperation", **asked, **GLAKE).stdout
