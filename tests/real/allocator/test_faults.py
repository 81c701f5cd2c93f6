"""What PyTorch's own allocator does, glake does: seen with the CUDA build of PyTorch on the simulated
GPU, each program run by both of PyTorch's allocators and by glake.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = os.environ.get("GLAKE_REAL_PYTHON")
ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"},
}

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="GLAKE_REAL_PYTHON names no Python with the CUDA build of PyTorch"
)


@pytest.fixture(scope="session")
def environment():
    from glake.dryrun import libraries

    clean = {name: text for name, text in os.environ.items() if name[:6] != "GLAKE_"}
    given = {"GLAKE_SIM_MEMORY": "4GiB", "GLAKE_SIM_DEVICES": "2", "OMP_NUM_THREADS": "1"}
    return libraries.environment(clean | given)


@pytest.fixture
def run(environment):
    """run(allocator, program or code, *arguments, **variables): the finished process."""

    def run(allocator, program, *arguments, **variables):
        command = [str(PROGRAMS / program)] if program.endswith(".py") else ["-c", program]
        return subprocess.run(
            [str(PYTHON), *command, *map(str, arguments)],
            env=environment | ALLOCATORS[allocator] | variables,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("program", ["identities.py", "history.py", "contexts.py", "reuse.py"])
def test_as_pytorch_does(run, allocator, program):
    done = run(allocator, program)
    assert done.stdout.endswith("ok\n"), done.stderr


def test_counts_are_pytorchs(run):
    """Synchronisations, and driver calls for pinned memory, number for number."""
    native, glake = run("native", "counts.py"), run("glake", "counts.py")
    assert native.returncode == 0 and glake.returncode == 0, native.stderr + glake.stderr
    assert glake.stdout == native.stdout


@pytest.mark.parametrize("allocator", ["native", "glake"])
def test_memory_of_others(run, allocator, tmp_path):
    """A pool's own allocator counts against the limit; blocks without caching are in no statistic.

    Not with expandable segments, which PyTorch's own pluggable allocators exclude.
    """
    library = tmp_path / "foreign.so"
    source = """
        #include <cstddef>
        extern "C" {
        int cudaMalloc(void**, size_t);
        int cudaFree(void*);
        void* foreign_malloc(size_t bytes, int, void*) {
          void* made = nullptr;
          return cudaMalloc(&made, bytes) == 0 ? made : nullptr;
        }
        void foreign_free(void* ptr, size_t, int, void*) { cudaFree(ptr); }
        }
    """
    command = ["g++", "-x", "c++", "-shared", "-fPIC", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    done = run(allocator, "outside.py", library)
    assert done.stdout.endswith("ok\n"), done.stderr


SETTINGS = """
import torch
torch.zeros(1, device="cuda")
print(torch.cuda.get_per_process_memory_fraction())
try:
    torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("refused")
"""


@pytest.mark.parametrize("allocator", ["native", "glake"])
def test_fraction_of_the_environment(run, allocator):
    done = run(allocator, SETTINGS, PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.5")
    assert done.stdout == "0.5\nrefused\n", done.stderr
    assert "RuntimeWarning" not in done.stderr


def test_settings_without_effect_are_named_once(run):
    given = (
        "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:4],"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5"
    )
    done = run("glake", SETTINGS, PYTORCH_CUDA_ALLOC_CONF=given)
    assert done.stdout == "0.5\nrefused\n", done.stderr
    warned = re.findall(
        r"RuntimeWarning: PYTORCH_CUDA_ALLOC_CONF: (.*) have no effect", done.stderr
    )
    assert warned == ["roundup_power2_divisions, garbage_collection_threshold"]


@pytest.mark.parametrize("driver", ["sim", "libsimcuda"])
def test_emulation_beside_cuda_is_refused(run, driver):
    """It would leave CUDA tensors with PyTorch's allocator."""
    import glake

    if driver == "libsimcuda":
        driver = str(glake.library_path().parent / "libsimcuda.so")
    program = "import torch; print(torch.cuda.get_allocator_backend())"
    done = run("glake", program, GLAKE_DRIVER=driver)
    assert done.returncode != 0 and "Set GLAKE_DRIVER=cuda" in done.stderr, done.stderr
    done = run("glake", program, GLAKE_DRIVER=driver, GLAKE_STRICT="0")
    assert done.stdout == "native\n"
    assert "RuntimeWarning: glake is off" in done.stderr
    assert "Set GLAKE_DRIVER=cuda" in done.stderr
    hidden = run("glake", "import torch", GLAKE_DRIVER=driver, CUDA_VISIBLE_DEVICES="")
    assert hidden.returncode == 0, hidden.stderr
