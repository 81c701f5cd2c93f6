"""The stored signatures, by which every commit is tested, are those of the packages."""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
STORED = HERE.parent / "integrations" / "stored"


def _folder(python: str, package: str) -> str:
    """The folder of a package in a Python."""
    command = [python, str(HERE / "programs" / "package_folder.py"), package]
    return subprocess.check_output(command, text=True).strip()


@pytest.mark.parametrize("package", ["deepspeed", "megatron", "fsdp2"])
def test_stored_signatures_are_the_packages(frameworks_python: str, package: str) -> None:
    printed = subprocess.run(
        [frameworks_python, str(HERE / "signatures.py"), package],
        env=os.environ | {"DS_ACCELERATOR": "cpu", "GLAKE_ALLOCATOR": "0"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert printed.returncode == 0, printed.stderr
    lines = [line for line in printed.stdout.splitlines() if line[:1] == "#" or " (" in line]
    assert lines == (STORED / f"{package}.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("variable", "stored"), [("VLLM_PYTHON", "vllm"), ("VLLM_CUDA_PYTHON", "vllm_0.33.0")]
)
def test_stored_signatures_are_vllms(variable: str, stored: str) -> None:
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"left out: {variable} names no Python with vLLM")
    folder = _folder(python, "vllm")
    printed = subprocess.check_output(
        [python, str(HERE / "source_signatures.py"), folder], text=True
    )
    assert printed.splitlines() == (STORED / f"{stored}.txt").read_text().splitlines()[1:]


CHECKS = {
    "megatron-core 0.16.1": ("FRAMEWORKS_PYTHON", "megatron"),
    "torchtitan 0.3.0": ("TITAN_PYTHON", "torchtitan"),
    "vllm 0.32.0": ("VLLM_PYTHON", "vllm"),
    "vllm 0.33.0": ("VLLM_CUDA_PYTHON", "vllm"),
}


@pytest.mark.parametrize("package", sorted(CHECKS))
def test_stored_checks_are_the_packages(package: str) -> None:
    """The places where each package looks for virtual memory, which docs/integrations.md lists."""
    variable, name = CHECKS[package]
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"left out: {variable} names no Python with {name}")
    folder = _folder(python, name)
    printed = subprocess.check_output([python, str(HERE / "source_checks.py"), folder], text=True)
    sections = (STORED / "virtual_memory_checks.txt").read_text().split("# ")
    (stored,) = [each for each in sections if each.startswith(package + "\n")]
    assert printed.splitlines() == stored.splitlines()[1:]
