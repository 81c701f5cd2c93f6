"""CUDA graphs and backend:cudaMallocAsync, by PyTorch's CUDA build over the stand-ins."""

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


def test_malloc_async(real):
    done = real(f"{PROGRAMS}/malloc_async", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert "not supported" not in done.stderr
