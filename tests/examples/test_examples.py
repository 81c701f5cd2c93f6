"""Every program of examples/ runs on the simulator as its docstring says, and prints its result.

Examples that need PyTorch's CUDA build run where REAL_PYTHON names one, as in tests/real. Those of
other packages run by FRAMEWORKS_PYTHON and VLLM_PYTHON, as in tests/frameworks.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_running import EXAMPLES, output

HERE = {
    "deduplicate": "the child: 32 MiB found, 32 freed",
    "environment_variable": "loss ",
    "hook_cupy": "held 12 MiB",
    "hook_fsdp2": "buffers in single allocations",
    "handover": "handed over four times: the same bytes",
    "kv_cache": "five sequences of 5,400 tokens: ",
    "library_import": "refused: glake: CUDA out of memory",
    "metrics": 'glake_transfer_path_bytes_total{path="cpu>cuda:2>cuda:0"}',
    "nodes": "read 16 MiB, all alike: True",
    "pause_and_resume": "resumed: the same bytes at the same address",
    "pinned_memory": "driver_allocs                           1",
    "record_and_replay": "glake        needs",
    "share_between_processes": "the child answered: world",
    "transfer_copy": "cpu>cuda:2>cuda:0",
    "transfer_explain": "plain copy",
}
CUDA = {
    "dry_run": "glake    holds",
    "hook_memory_saver": "resumed: the same bytes",
    "larger_than_gpu": "a model of 1536 MiB; at most on the GPU: 160 MiB",
    "private_pool": "the pool holds 64 MiB",
}
FRAMEWORKS = {
    "hook_deepspeed": "glake.integrations.deepspeed.written_bytes",
    "hook_megatron": "activations back 4 MiB",
}
ALL = {*HERE, *CUDA, *FRAMEWORKS, "hook_vllm"}


def test_every_example_is_run() -> None:
    assert sorted(ALL) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", sorted(ALL))
def test_an_example_is_short_and_of_one_subject(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", sorted(HERE))
def test_example(name: str, jit_dir: Path, tmp_path: Path) -> None:
    machine = f"example{os.getpid()}"  # so that two suites at once share no machine
    joined = name in ("deduplicate", "share_between_processes")
    # A registry of its own, too.
    variables = {"GLAKE_SIM_MACHINE": machine, "XDG_RUNTIME_DIR": str(tmp_path)} if joined else {}
    assert HERE[name] in output(name, GLAKE_JIT_DIR=str(jit_dir), **variables)


@pytest.mark.parametrize(
    "name", ["deduplicate", "hook_fsdp2", "library_import", "share_between_processes"]
)
def test_an_example_without_its_variables_says_how_to_run_it(name: str, jit_dir: Path) -> None:
    clean = {each: value for each, value in os.environ.items() if each[:6] != "GLAKE_"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        env={**clean, "GLAKE_JIT_DIR": str(jit_dir), "GLAKE_DRIVER": "sim"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(rf": GLAKE_\w+=.* python examples/{name}\.py$", done.stderr.strip())


@pytest.mark.parametrize("name", sorted(CUDA))
def test_example_of_cuda(name: str) -> None:
    python = os.environ.get("REAL_PYTHON")
    if not python:
        pytest.skip("left out: REAL_PYTHON names no Python with a CUDA build of PyTorch")
    assert CUDA[name] in output(name, python)


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_example_of_another_package(name: str) -> None:
    python = os.environ.get("FRAMEWORKS_PYTHON")
    if not python:
        pytest.skip("left out: FRAMEWORKS_PYTHON names no Python with DeepSpeed and the others")
    assert FRAMEWORKS[name] in output(name, python)


def test_example_of_vllm(tmp_path: Path) -> None:
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        pytest.skip("left out: VLLM_PYTHON names no Python with vLLM's CPU build")
    programs = EXAMPLES.parent / "tests" / "frameworks" / "programs"
    made = subprocess.run(
        [python, programs / "vllm_model.py", tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = output("hook_vllm", python, arguments=(made.stdout.splitlines()[-1],))
    assert "stored 0 KiB" not in said and "loaded 0 KiB" not in said and "loaded " in said
