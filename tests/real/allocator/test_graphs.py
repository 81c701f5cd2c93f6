"""CUDA graphs and backend:cudaMallocAsync by the CUDA build of PyTorch over the stand-ins."""

import pytest

PROGRAMS = "../allocator/programs"
ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"},
}


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_graphs_replay(real, allocator):
    done = real(f"{PROGRAMS}/graphs", **ALLOCATORS[allocator])
    assert "graphs replay" in done.stdout
    assert "not supported" not in done.stderr


@pytest.mark.parametrize("pools", ["stitched", "legacy"])
def test_private_pools_are_stitched_or_legacy(real, pools, monkeypatch):
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    glake = ALLOCATORS["glake"] | {"GLAKE_PRIVATE_POOLS": pools}
    assert "pools ok" in real(f"{PROGRAMS}/legacy_pools", pools, **glake).stdout


def test_what_the_user_says_of_graph_registration_stays(real):
    glake = ALLOCATORS["glake"] | {"NCCL_GRAPH_REGISTER": "1"}
    assert "pools ok" in real(f"{PROGRAMS}/legacy_pools", "stitched", "kept", **glake).stdout


def test_malloc_async(real):
    done = real(f"{PROGRAMS}/malloc_async", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert "not supported" not in done.stderr
