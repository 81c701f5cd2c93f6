"""The unmodified CUDA build of PyTorch starts, moves bytes and trains over the stand-ins."""

import sys

import pytest

PRESETS = {  # name: devices, compute capability, multiprocessors
    "hgx_h100_h200": (8, 9, 0, 132),
    "dgx_a100": (8, 8, 0, 108),
    "gb200_tray": (4, 10, 0, 152),
}


def test_bytes_streams_and_events(real):
    real("bytes_and_streams", GLAKE_SIM_DEVICES="2")


@pytest.mark.parametrize("preset", PRESETS)
def test_devices_are_the_presets(real, preset):
    devices, major, minor, multiprocessors = PRESETS[preset]
    told = (preset, devices, major, minor, multiprocessors)
    real("devices", *map(str, told), GLAKE_SIM_PRESET=preset, GLAKE_SIM_MEMORY="3GiB")


def test_errors_are_pytorchs(real):
    real("errors", GLAKE_SIM_DEVICES="2")


@pytest.mark.parametrize("segments", ["False", "True"])
def test_native_allocator(real, segments):
    real("allocator", segments, PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{segments}")


@pytest.mark.parametrize("segments", ["False", "True"])
def test_training_in_memory_mode(real, segments):
    done = real(
        "training",
        PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{segments}",
        GLAKE_SIM_MEMORY="2GiB",
    )
    assert "not supported" not in done.stderr


def test_phantom_memory_holds_more_than_the_host(real):
    real("phantom", GLAKE_SIM_PHANTOM="1", GLAKE_SIM_MEMORY="80GiB", GLAKE_SIM_DEVICES="1")


def test_cuda_core_runs(real):
    """Programs of NVIDIA's Python packages, and numba-cuda on them, call the driver alone."""
    real("cuda_core", GLAKE_SIM_DEVICES="2")


def test_libraries_that_pytorch_does_not_ask(here):
    done = here("other_libraries")
    assert "not supported" not in done.stderr


def test_unsupported_function_is_named(real):
    done = real("unsupported")
    assert "libcusolver has no cusolverDn" in done.stderr


def test_stand_ins_come_before_installed_wheels(real):
    """PyTorch loads wheels by path, and DT_RPATH leads to them, but preloaded names come first."""
    paths = real("loaded").stdout.split()
    assert len(paths) == 5 and all("/glake/lib/cuda/" in path for path in paths), paths


def test_glakes_allocator_serves_it(real_python, real):
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version not in real("version").stdout:
        pytest.skip(f"left out: REAL_PYTHON is not {version}, which glake is built for here")
    from conftest import ROOT

    done = real(
        "adapter", GLAKE_ALLOCATOR="1", GLAKE_STRICT="1", GLAKE_DRIVER="cuda", PYTHONPATH=str(ROOT)
    )
    assert "served by glake" in done.stdout


@pytest.mark.parametrize("preset", ["hgx_h100_h200", "dgx1v", "a40x8_bridged", "a10_l40s_x8"])
def test_nvml_tells_of_the_presets_links(here, preset):
    here("nvml", preset, GLAKE_SIM_PRESET=preset, GLAKE_SIM_MEMORY="3GiB")


def test_nvml_starts_no_driver(here):
    """CUDA does not survive a fork. Asking NVML first must not start it, so that a child can."""
    here("nvml_then_fork")


def test_a_threads_first_call_of_cuda_may_be_a_librarys(real):
    """autograd's thread has no context before cuDNN launches there."""
    assert real("first_of_a_thread").stdout == "ok\n"


def test_an_event_of_two_processes_is_recorded_by_both(real):
    assert real("shared_events").stdout == "ok\n"


def test_user_objects_end_with_what_holds_them(here):
    done = here("user_objects")
    assert done.stdout == "ok\n" and "libcuda has no cuGraphAddNode" in done.stderr, done.stderr


@pytest.mark.parametrize("mode", ["memory", "numbers"])
def test_kernels_compiled_at_run_time(real, tmp_path, mode):
    """They are counted in memory mode, and named in an error in numbers mode. They leave no file
    that a run on a GPU would take for a compiled kernel."""
    kept = tmp_path / "kernels"
    done = real("compiled_at_run_time", mode, PYTORCH_KERNEL_CACHE_PATH=str(kept))
    assert "my_scaled" in done.stdout.split() and not list(kept.glob("*"))
