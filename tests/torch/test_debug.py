"""The debug modes under torch: training is undisturbed, and damage done by a tensor is named."""


def test_training_is_bit_identical_and_clean(run, stock_losses):
    done = run("train.py", DEBUG="guard,poison,trace", SIM_MEMORY="512MiB")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == stock_losses
    assert "glake debug" not in done.stderr, done.stderr


OVERRUN = """
    import ctypes, torch, glake

    def make_victim():
        with glake.tag("victim"):
            return torch.zeros(250)

    victim = make_victim()
    ctypes.memset(victim.data_ptr() + 1000, 1, 4)
    {then}
"""


def test_an_overrun_is_named_by_check(passes):
    then = """
    try:
        glake.check()
    except glake.Corrupted as error:
        text = str(error)
    assert 'tag "victim"' in text and "past the end" in text and "4 bytes changed" in text, text
    assert "make_victim" in text, text
    del victim
    assert glake.findings() == []
    """
    passes(OVERRUN.format(then=then), DEBUG="guard,trace")


def test_unread_findings_are_printed_once_at_exit(run):
    done = run(OVERRUN.format(then="del victim"), DEBUG="guard,trace")
    assert done.returncode == 0
    assert done.stderr.count("glake debug: write past the end") == 1, done.stderr
    assert "make_victim" in done.stderr


def test_a_write_after_free_is_blamed(passes):
    passes(
        """
        import ctypes, torch, glake

        def dangling():
            return torch.zeros(1000).data_ptr()

        ctypes.memset(dangling() + 16, 1, 1)
        try:
            glake.check()
        except glake.Corrupted as error:
            assert "write after free" in str(error) and "freed at" in str(error), error
            assert "dangling" in str(error), error
        else:
            raise AssertionError("not found")
        """,
        DEBUG="poison,trace",
    )


def test_glake_run_takes_the_option(run, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes, torch\n"
        "t = torch.zeros(10)\n"
        "ctypes.memset(t.data_ptr() - 4, 1, 4)\n"
        "del t\n"
    )  # fmt: skip
    flags = ("-m", "glake.cli", "run", "--driver", "sim", "--debug", "guard,poison")
    done = run(str(script), on=False, flags=flags)
    assert done.returncode == 0, done.stderr
    assert "write before the start of a block" in done.stderr


def test_data_loader_workers_are_left_in_peace(run):
    done = run("workers.py", "fork", DEBUG="guard,poison")
    assert done.returncode == 0, done.stderr
    assert "glake debug" not in done.stderr
