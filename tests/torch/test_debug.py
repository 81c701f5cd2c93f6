"""Debug modes under torch do not disturb training, and name damage that a tensor does."""


def test_training_is_bit_identical_and_clean(run, stock_losses):
    done = run("train.py", DEBUG="guard,poison,trace", SIM_MEMORY="512MiB")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == stock_losses
    assert "glake debug" not in done.stderr, done.stderr


def test_an_overrun_is_named_by_check(passes):
    passes("overrun.py", "check", DEBUG="guard,trace")


def test_unread_findings_are_printed_once_at_exit(run):
    done = run("overrun.py", "exit", DEBUG="guard,trace")
    assert done.returncode == 0
    assert done.stderr.count("glake debug: write past the end") == 1, done.stderr
    assert "make_victim" in done.stderr


def test_a_write_after_free_is_blamed(passes):
    passes("write_after_free.py", DEBUG="poison,trace")


def test_glake_run_takes_the_option(run):
    flags = ("-m", "glake.cli", "run", "--driver", "sim", "--debug", "guard,poison")
    done = run("underrun.py", on=False, flags=flags)
    assert done.returncode == 0, done.stderr
    assert "write before the start of a block" in done.stderr


def test_data_loader_workers_are_left_in_peace(run):
    done = run("workers.py", "fork", DEBUG="guard,poison")
    assert done.returncode == 0, done.stderr
    assert "glake debug" not in done.stderr
