"""CuPy's arrays in glake's memory, by the real package. Its kernels would need a GPU."""

from __future__ import annotations


def test_arrays_and_pinned_memory_are_glakes(program) -> None:
    said = program("cupy_arrays", GLAKE_SIM_MEMORY="256MiB", GLAKE_SIM_DEVICES="2").stdout
    assert said.startswith("cupy 14.")
