"""`glake dry-run --numbers`: the unmodified CUDA build computes what the CPU computes."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from glake.dryrun import libraries

PROGRAMS = Path(__file__).parent / "programs"
ALLOCATORS = ("native", "expandable", "glake")


@pytest.fixture
def numbers(real_python):
    """Runs a command by `glake dry-run --numbers`. Returns its rows and what it says."""

    def run(*command, allocator="native", gpus=1):
        options = ["--memory", "2GiB", "--outside", "0", "--allocator", allocator]
        done = subprocess.run(
            [real_python, "-m", "glake.cli", "dry-run", "--numbers", "--json", *options]
            + ["--gpus", str(gpus), *map(str, command)],
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout), done.stderr

    return run


@pytest.fixture
def program(real_python):
    """Runs a program over the stand-ins, with numbers or not. Returns what it printed."""

    def run(name, *arguments, install=True, **changes):
        command = [PROGRAMS / "started.py"] if install else []
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_SIM")}
        kept |= {"GLAKE_SIM_MEMORY": "2GiB", "GLAKE_SIM_DEVICES": "2", **changes}
        done = subprocess.run(
            [real_python, "-W", "ignore", *command, PROGRAMS / name, *arguments],
            env=libraries.environment(kept),
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_a_gpt_learns_as_on_the_cpu_to_the_last_bit(numbers, allocator):
    rows, words = numbers(PROGRAMS / "gpt.py", allocator=allocator)
    assert words.rstrip().endswith("equal") and rows[0]["steps"] == 20


@pytest.mark.parametrize("options", [{"dropout": 0.2}, {"autocast": True}])
def test_a_gpt_with_dropout_and_by_autocast(program, options):
    """Dropout draws what the CPU draws, in attention too. Autocast is bfloat16."""
    assert "equal" in program("gpt.py", json.dumps(options)).split()


FEATURES = [
    "graph_replays",
    "graph_of_a_training_step",
    "side_stream_with_events",
    "repr_of_strided",
    "backward_in_threads",
    "random_follows_the_cpu",
    "checkpoint_draws_dropout_again",
    "images",
    "shapes_that_depend_on_data",
    "copies",
    "linear_algebra",
    "scaler",
    "recurrent",
    "half",
    "softmax_of_half_in_float",
    "fourier_of_half",
    "sync_batch_norm",
    "ops_that_cudnn_takes",
    "a_replay_draws_from_where_the_generator_is",
    "draws_after_a_replay_follow_the_cpu",
    "attention_by_backends_that_the_cpu_lacks",
    "lists_of_tensors_on_several_devices",
]
FAILURES = [
    "unmapped",
    "index_out_of_bounds",
    "unknown_kernel",
    "op_without_a_cpu_kernel",
    "refused_arguments",
    "assertions_are_as_on_a_gpu",
]


def test_graphs_streams_threads_draws_and_the_rest(program):
    said = program("features.py", *FEATURES)
    assert said.splitlines() == [f"{name} ok" for name in FEATURES]


def test_a_kernel_that_torch_adds_is_replaced_too(numbers, monkeypatch):
    """torch adds it after glake's entry point has run. Triton would launch a kernel of its own."""
    order = "TORCH_PYTHON_NATIVE_USER_GRAPH_ORDER_FN"
    monkeypatch.setenv(order, "kernel_of_torch.order")
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS), prepend=os.pathsep)
    _, words = numbers(PROGRAMS / "kernel_of_torch.py")
    assert "equal" in words.split()


def test_a_program_may_end_right_after_backward(program):
    """Without a wait at the end, two of three runs end by std::terminate."""
    for _ in range(3):
        assert program("ends_after_backward.py") == "ok\n"


@pytest.mark.parametrize("name", FAILURES)
def test_what_fails_is_named_or_fails_as_on_a_gpu(program, name):
    assert f"{name} ok" in program("errors.py", name)


def test_phantom_memory_and_numbers_exclude_each_other(program):
    assert "phantom ok" in program("errors.py", "phantom", install=False)


def test_numbers_and_a_capacity_search_exclude_each_other(real_python):
    command = [real_python, "-m", "glake.cli", "dry-run", "--numbers", "--capacity-search", "x.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and "ask for one of the two" in done.stderr


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_learn_as_by_gloo(numbers, real_python, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launch = ["--standalone", "--nproc-per-node", "2", str(PROGRAMS / "ranks.py"), kind]
    rows, _ = numbers("torchrun", *launch, "cuda", tmp_path, gpus=2)
    assert rows[0]["ranks"] == 2 and rows[0]["steps"] == 10
    by_gloo = [real_python, "-m", "torch.distributed.run", *launch, "cpu", str(tmp_path)]
    preload = libraries.environment(os.environ)  # torch's CUDA build needs it to load
    done = subprocess.run(by_gloo, env=preload, timeout=400, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    mine, theirs = (
        json.loads((tmp_path / f"{kind}-{device}.json").read_text()) for device in ("cuda", "cpu")
    )
    assert mine == pytest.approx(theirs, abs=1e-6) and mine[0] > mine[-1] > 0


@pytest.mark.parametrize("memory", ["phantom", "real"])
def test_without_numbers_what_is_read_back_is_zero(program, memory):
    phantom = str(int(memory == "phantom"))
    said = program("memory_mode.py", memory, install=False, GLAKE_SIM_PHANTOM=phantom)
    assert said.split() == ["zeros"]


def test_regions_pause_between_steps_and_replays(program):
    """Weights and optimizer come back as they went, so the losses are the same."""
    glake = {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}
    assert program("regions.py", **glake).strip().endswith("equal")


def test_parameters_with_held_gradients_stay(program):
    """torch drops the node of a parameter that changes its device. Ranks would then train apart."""
    glake = {"GLAKE_ALLOCATOR": "1", "GLAKE_STRICT": "1", "GLAKE_DRIVER": "cuda"}
    assert program("offload_held.py", **glake).strip().endswith("held")
