"""Training by other packages: the same losses in PyTorch's memory and in glake's."""

import importlib.util
import json
from typing import Any

import pytest
from gpu_running import PROGRAMS, run_program

NEEDS = {
    "transformers": ("transformers", "peft", "accelerate"),
    "lightning": ("lightning",),
    "fsdp2": (),
    "ddp": (),
}


def train(how: str, glake: bool) -> dict[str, Any]:
    done = run_program(PROGRAMS / "trained_by.py", how, glake=glake)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    found = [line[7:] for line in done.stdout.splitlines() if line[:7] == "RESULT "]
    told: dict[str, Any] = json.loads(found[-1])
    return told


@pytest.mark.gpu
@pytest.mark.parametrize("how", NEEDS)
def test_losses_are_the_same(how: str) -> None:
    for package in NEEDS[how]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    native, ours = train(how, glake=False), train(how, glake=True)
    # Not every model can learn random words, but each step has another loss.
    assert len(set(native["losses"])) == 12
    assert ours["losses"] == native["losses"]
    assert ours["glake_peak"] == ours["peak"] > 0  # glake had the tensors
