"""glake does what PyTorch's own allocators do.

The CUDA build of PyTorch runs each program over the simulated GPU, with both of PyTorch's
allocators and with glake.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

libraries = pytest.importorskip("glake.dryrun.libraries")

PROGRAMS = Path(__file__).parent / "programs"
ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "glake": {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"},
}


@pytest.fixture(scope="session")
def environment():
    clean = {name: text for name, text in os.environ.items() if name[:6] != "GLAKE_"}
    given = {"GLAKE_SIM_MEMORY": "4GiB", "GLAKE_SIM_DEVICES": "2", "OMP_NUM_THREADS": "1"}
    return libraries.environment(clean | given)


@pytest.fixture
def run(environment, real_python):
    """run(allocator, program or code, *arguments, **variables): the finished process."""

    def run(allocator, program, *arguments, **variables):
        command = [str(PROGRAMS / program)] if program.endswith(".py") else ["-c", program]
        return subprocess.run(
            [str(real_python), *command, *map(str, arguments)],
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


def test_stacks_of_both_recorders(run):
    done = run("glake", "recorders.py", GLAKE_DEBUG="guard,trace,sync")
    assert done.stdout.endswith("ok\n"), (done.returncode, done.stderr)


def test_counts_are_pytorchs(run):
    """Counts of synchronisations, and of driver calls for pinned memory, are exactly the same."""
    native, glake = run("native", "counts.py"), run("glake", "counts.py")
    assert native.returncode == 0 and glake.returncode == 0, native.stderr + glake.stderr
    assert glake.stdout == native.stdout


@pytest.mark.parametrize("allocator", ["native", "glake"])
def test_memory_of_others(run, allocator, tmp_path):
    """A pool's own allocator counts against the limit. Blocks without caching are in no statistic.

    Expandable segments are left out: PyTorch does not allow pluggable allocators beside them.
    """
    library = tmp_path / "foreign.so"
    subprocess.run(["g++", "-shared", "-fPIC", PROGRAMS / "foreign.cpp", "-o", library], check=True)
    done = run(allocator, "outside.py", library)
    assert done.stdout.endswith("ok\n"), done.stderr


@pytest.mark.parametrize("allocator", ["native", "glake"])
@pytest.mark.parametrize("fraction", ["0.5", "0.0", "0.0001220703125"])
def test_fraction_of_the_environment(run, allocator, fraction):
    given = f"per_process_memory_fraction:{fraction}"
    done = run(allocator, "settings.py", PYTORCH_CUDA_ALLOC_CONF=given)
    assert done.stdout == f"{fraction}\nrefused\n", done.stderr
    assert "RuntimeWarning" not in done.stderr


@pytest.mark.parametrize("allocator", ["native", "glake"])
@pytest.mark.parametrize("fraction", ["-0.1", "1.1"])
def test_wrong_fraction_of_the_environment(run, allocator, fraction):
    given = f"per_process_memory_fraction:{fraction}"
    done = run(allocator, "settings.py", PYTORCH_CUDA_ALLOC_CONF=given)
    assert done.returncode != 0 and done.stdout == ""
    assert re.search("(ValueError|InvalidOption): .*per_process_memory_fraction", done.stderr)


def test_settings_without_effect_are_named_once(run):
    given = (
        "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:4],"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5"
    )
    done = run("glake", "settings.py", PYTORCH_CUDA_ALLOC_CONF=given)
    assert done.stdout == "0.5\nrefused\n", done.stderr
    warned = re.findall(r"RuntimeWarning: PYTORCH_CUDA_ALLOC_CONF: (.*) has no effect", done.stderr)
    assert warned == ["garbage_collection_threshold"]


# Every key that PyTorch 2.14 knows. glake obeys those in HONOURED, and names those in NAMED.
HONOURED = {
    "backend": "native",
    "expandable_segments": "True",
    "per_process_memory_fraction": "0.5",
    "release_lock_on_cudamalloc": "True",
    "roundup_power2_divisions": "4",
}
NAMED = {
    "garbage_collection_threshold": "0.8",
    "graph_capture_record_stream_reuse": "True",
    "large_segment_size_mb": "40",
    "max_non_split_rounding_mb": "40",
    "max_split_size_mb": "64",
    "pinned_free_catch_all": "True",
    "pinned_max_cached_size_mb": "64",
    "pinned_max_round_threshold_mb": "64",
    "pinned_num_register_threads": "2",
    "pinned_reserve_segment_size_mb": "16",
    "pinned_use_background_threads": "False",
    "pinned_use_cuda_host_register": "False",
    "throw_on_cudamalloc_oom": "True",
}
OF_ROCM = {"release_lock_on_hipmalloc", "pinned_use_hip_host_register"}  # ROCm's names of two keys


def test_every_key_is_honoured_or_named(run):
    known, common = run("native", "keys.py").stdout.splitlines()
    pinned = {"max_round_threshold", "max_cached_size"}  # prefixes are cut off: pinned_..._mb
    assert set(known.split()) - OF_ROCM <= HONOURED.keys() | NAMED.keys()
    assert set(common.split()) - pinned <= HONOURED.keys() | NAMED.keys()
    given = ",".join(f"{key}:{value}" for key, value in (HONOURED | NAMED).items())
    done = run("glake", "settings.py", PYTORCH_CUDA_ALLOC_CONF=given)
    assert done.stdout == "0.5\nrefused\n", done.stderr
    (warned,) = re.findall(r"RuntimeWarning: PYTORCH_CUDA_ALLOC_CONF: (.*) have no", done.stderr)
    assert warned.split(", ") == list(NAMED)


def test_what_is_set_later_is_named_too(run):
    given = "graph_capture_record_stream_reuse:True,roundup_power2_divisions:4"
    done = run("glake", "set_later.py", given)
    assert done.stdout.startswith("allocator settings: graph_capture_record_stream_reuse has no"), (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize("given", ["8", "1", "[1:4,64:8,256:2,>:16]"])
def test_sizes_are_rounded_as_pytorch_does(run, given):
    conf = f"expandable_segments:True,roundup_power2_divisions:{given}"
    stock, glake = (
        run(each, "rounded.py", PYTORCH_CUDA_ALLOC_CONF=conf) for each in ("native", "glake")
    )
    assert stock.stdout.count("\n") == 14, stock.stderr
    assert glake.stdout == stock.stdout
    assert "RuntimeWarning" not in glake.stderr


@pytest.mark.parametrize("driver", ["sim", "libsimcuda"])
def test_emulation_beside_cuda_is_refused(run, driver):
    """The emulation would leave CUDA tensors with PyTorch's allocator."""
    import glake

    if driver == "libsimcuda":
        driver = str(glake.library_path().parent / "libsimcuda.so")
    done = run("glake", "backend.py", GLAKE_DRIVER=driver)
    assert done.returncode != 0 and "Set GLAKE_DRIVER=cuda" in done.stderr, done.stderr
    done = run("glake", "backend.py", GLAKE_DRIVER=driver, GLAKE_STRICT="0")
    assert done.stdout == "native\n"
    assert "RuntimeWarning: glake is off" in done.stderr
    assert "Set GLAKE_DRIVER=cuda" in done.stderr
    hidden = run("glake", "import torch", GLAKE_DRIVER=driver, CUDA_VISIBLE_DEVICES="")
    assert hidden.returncode == 0, hidden.stderr
