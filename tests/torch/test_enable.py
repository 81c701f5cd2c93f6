"""glake.enable(), the memory it serves, and what stays outside."""

import os


def test_enable_after_tensors_exist(passes):
    assert passes("enabled_late.py", on=False) == []


def test_bad_options_are_typed_and_change_nothing(passes):
    assert passes("wrong_options.py", on=False) == ["emulation"]


def test_enable_with_an_absent_driver_raises(passes):
    assert passes("absent_driver.py", on=False) == ["True"]


def test_out_of_memory_is_torchs_and_training_goes_on(passes):
    assert passes("out_of_memory.py", LIMIT="128MiB") == ["True True", "True True", "4 True", "0"]


def test_inside_and_outside(passes):
    assert passes("inside_and_outside.py") == []


def test_processes_of_one_machine_have_the_same_memory(passes):
    machine = f"torch-{os.getpid()}"
    given = {"SIM_MACHINE": machine, "SIM_MEMORY": None}
    assert passes("shares_a_machine.py", on=False, **given) == [str(4 << 20)]


def test_eight_threads(passes):
    assert passes("threads.py") == ["0 wrong", "0 failed frees", "0 bytes live"]


def test_the_profiler_sees_the_memory(run):
    done = run("profiled.py")  # kineto may log on stderr
    assert (done.returncode, done.stdout) == (0, f"{4 << 20}\n"), done.stderr


def test_trace_and_steps(passes, tmp_path):
    lines = passes("traced_steps.py", str(tmp_path))
    assert lines[1:] == ["True", "no such device"]
    assert int(lines[0]) >= 3
    assert (tmp_path / "job.trace").stat().st_size > 0


def test_exit_with_live_tensors_everywhere_is_clean(passes):
    assert passes("live_at_exit.py", on=False) == []


def test_enable_says_so_where_there_is_no_torch(passes):
    assert passes("without_torch.py", on=False) == [
        "glake.enable() is for PyTorch, which is not installed here: with a GPU its CUDA build: "
        "pip install torch; without one the CPU build: pip install torch --index-url "
        "https://download.pytorch.org/whl/cpu"
    ]
