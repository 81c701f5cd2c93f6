"""The trainer on a GPU has the same losses in PyTorch's memory and in glake's, with offload or
without, and from a checkpoint."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_running import ROOT, environment

pytest.importorskip("tomli_w", reason="glake.trainer writes its configuration by tomli_w")

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("trainer")]
OFFLOADS = {
    "nothing": (),
    "optimizer": ("sharding.offload=optimizer",),
    "parameters": ("sharding.offload=parameters",),
    "activations": ("sharding.activation_offload=true", "sharding.recompute=true"),
}


def losses(folder: Path, *options: str, glake: bool = True, steps: int = 12) -> list[float]:
    """The loss of each step, from the run's log."""
    command = [sys.executable, "-m", "glake.trainer", "--config", "gpt-tiny", "--steps", str(steps)]
    command += ["--data", str(ROOT / "docs"), "--folder", str(folder), "--set", "log.every=1"]
    command += ["--set", "schedule.shape=constant"]  # else rates depend on the number of steps
    for option in options:
        command += ["--set", option]
    done = subprocess.run(
        command, env=environment(glake), capture_output=True, text=True, timeout=150, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [each["loss"] for each in log if each["event"] == "step"]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses in PyTorch's own memory."""
    return losses(tmp_path_factory.mktemp("native"), glake=False)


@pytest.mark.parametrize("offload", OFFLOADS)
def test_losses_are_those_of_pytorchs_memory(
    native: list[float], tmp_path: Path, offload: str
) -> None:
    ours = losses(tmp_path, *OFFLOADS[offload])
    # Atomic additions sum the embedding's gradient, in an order that changes.
    assert ours == pytest.approx(native, rel=2e-3) and len(ours) == 12
    assert ours[-1] < ours[0]


def test_a_run_goes_on_from_its_checkpoint(native: list[float], tmp_path: Path) -> None:
    options = ("checkpoint.every=3", "sharding.offload=optimizer")
    first = losses(tmp_path, *options, steps=6)
    both = losses(tmp_path, *options)
    assert both[: len(first)] == first and both == pytest.approx(native, rel=2e-3)
