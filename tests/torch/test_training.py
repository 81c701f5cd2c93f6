"""The emulation changes where tensors lie, and not one bit of what is computed."""

import re


def test_losses_are_bit_identical_and_the_coverage_is_printed(run, stock_losses):
    done = run("train.py")
    assert done.returncode == 0, done.stderr
    assert len(stock_losses) == 13
    assert done.stdout.splitlines() == stock_losses
    line = re.fullmatch(
        r"glake: emulation, no GPU: glake held (\d+\.\d)% of the (\d+\.\d+) MiB "
        r"of live CPU tensors\n",
        done.stderr,
    )
    assert line, done.stderr
    assert float(line[1]) > 99 and float(line[2]) > 1


def test_glake_run_with_compact_and_a_tight_limit_trains_the_same(passes, stock_losses):
    options = ("--driver", "sim", "--policy", "compact", "--limit", "32MiB")
    flags = ("-m", "glake.cli", "run", *options)
    assert passes("train.py", on=False, flags=flags) == stock_losses


def test_steps_are_those_of_the_first_optimizer_until_marked_by_hand(passes):
    assert passes("marked_steps.py") == ["3", "4"]


def test_spawned_ranks_tell_their_coverage_and_the_launcher_nothing(run):
    done = run("ddp_spawn.py")
    assert (done.returncode, done.stdout) == (0, "done 0\n"), done.stderr
    told = re.findall(r"emulation, no GPU: glake held (\d+\.\d)% of", done.stderr)
    assert len(told) == 2 and all(float(share) > 90 for share in told), done.stderr
