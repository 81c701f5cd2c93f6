"""The programs of examples/ that need PyTorch's CUDA build."""

import subprocess
import sys

import pytest
from gpu_running import ROOT, environment

EXAMPLES = {
    "larger_than_gpu": "a model of 1536 MiB; at most on the GPU: 160 MiB",
    "private_pool": "the pool holds 64 MiB",
    "hook_memory_saver": "resumed: the same bytes",
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    if name == "hook_memory_saver":
        pytest.importorskip("torch_memory_saver")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        env=environment(True),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert EXAMPLES[name] in done.stdout
