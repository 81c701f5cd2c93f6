"""The Python calls of watching, without torch. Each program runs in a Python of its own."""

import subprocess
from pathlib import Path

import own_python
import pytest

import glake
from glake.allocator import snapshot
from glake.errors import FileFailed, InvalidArgument

PROGRAMS = Path(__file__).parent / "programs"


def run(name: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    settings = {"GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "256MiB", "GLAKE_SIM_DEVICES": "2"}
    return own_python.run(PROGRAMS / name, *arguments, **settings, **variables, timeout=60)


def test_bad_values_are_refused() -> None:
    for bad in ({"enabled": "some"}, {"stacks": "c"}, {"max_entries": 0}):
        with pytest.raises(InvalidArgument, match="record_memory_history"):
            snapshot.record_memory_history(**bad)


def test_snapshot_and_history_of_plain_blocks() -> None:
    done = run("watched_blocks.py")
    assert done.returncode == 0, done.stderr


def test_segments_that_are_not_paused_add_up() -> None:
    done = run("paused_segments.py")
    assert done.returncode == 0, done.stderr


def test_unread_findings_are_printed_at_exit_without_torch() -> None:
    done = run("damage_at_exit.py", GLAKE_DEBUG="guard,sync")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("write past the end of a block") == 2, done.stderr
    assert "of 1000 bytes" in done.stderr and "of 2000 bytes" in done.stderr
    done = run("damage_at_exit.py")
    assert (done.returncode, done.stderr) == (0, "")


def test_check_and_findings_name_the_damage() -> None:
    done = run("damage.py", GLAKE_DEBUG="guard,poison,sync")
    assert done.returncode == 0, done.stderr
    assert "write past the end of a block" in done.stdout
    assert "of 1000 bytes" in done.stdout and "2 bytes changed" in done.stdout
    assert "write after free" in done.stdout and "of 500 bytes" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 []"


def test_texts_of_the_debug_modes() -> None:
    done = run("debug_texts.py", GLAKE_DEBUG="guard,poison,trace,sync")
    assert done.returncode == 0, done.stderr


def test_tag_decorates_and_ends_with_an_exception() -> None:
    done = run("tags.py")
    assert done.returncode == 0, done.stderr


def test_a_forked_child_is_told() -> None:
    done = run("watching_fork.py", GLAKE_DEBUG="guard,poison,trace")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("before", ["unused", "used"])
def test_a_forked_child_writes_nothing_into_the_trace(tmp_path: Path, before: str) -> None:
    # The child may use glake itself if its parent has not used the driver before.
    path = tmp_path / "trace"
    done = run("tracing_fork.py", str(path), before)
    assert done.returncode == 0, done.stderr
    lines = path.read_text().splitlines()
    assert sum(line[0] == "#" for line in lines) == 2, lines
    sizes = [line.split()[2] for line in lines if line[0] == "a"]
    assert sizes == (["1000", "3000"] if before == "used" else ["3000"])


@pytest.mark.parametrize("how", ["stop", "next", "exit", "option"])
def test_a_trace_that_cannot_be_written_whole_is_an_error(how: str) -> None:
    variables = {"GLAKE_TRACE": "/dev/full"} if how == "option" else {}
    done = run("full_trace.py", how, "/dev/full", **variables)
    assert done.returncode == 0, done.stderr
    told = (done.stdout if how in ("stop", "next") else done.stderr).splitlines()
    assert len(told) == 1 and "/dev/full is not whole: No space left on device" in told[0], told


def test_a_trace_goes_on_after_a_shutdown(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("a 7 7 0\n")  # of an earlier job
    done = run("trace_after_shutdown.py", GLAKE_TRACE=str(path))
    assert done.returncode == 0, done.stderr
    lines = path.read_text().splitlines()
    assert [line[0] for line in lines[:2]] == ["#", "#"]
    assert lines[2:] == ["a 0 1000 0", "f 0", "a 1 1000 0", "f 1"]


def test_two_processes_do_not_write_one_trace(tmp_path: Path) -> None:
    """As with an option that a child inherits. The first trace stays whole."""
    path = tmp_path / "trace"
    done = run("trace_of_two.py", GLAKE_TRACE=str(path))
    assert done.returncode == 0, done.stderr
    lines = path.read_text().splitlines()
    assert lines[2:] == ["a 0 1000 0", "a 1 2000 0", "f 1", "f 0"]
    told = [line for line in done.stderr.splitlines() if "another process writes" in line]
    assert len(told) == 1 and f"the trace {path}, so this one cannot" in told[0]
    assert "%p in the name" in told[0]
    assert "record_trace: FileFailed: another process writes the trace" in done.stdout


def test_a_device_may_have_several_writers() -> None:
    done = run("trace_of_two.py", GLAKE_TRACE="/dev/null")
    assert done.returncode == 0 and "another process" not in done.stderr, done.stderr
    assert "record_trace: begun" in done.stdout


def test_each_process_has_a_trace_of_its_own(tmp_path: Path) -> None:
    done = run("trace_of_two.py", GLAKE_TRACE=str(tmp_path / "%p-%p.trace"))
    assert done.returncode == 0 and "another process" not in done.stderr, done.stderr
    (parent, child) = (int(line.split()[1]) for line in done.stdout.splitlines()[-2:])
    for process, sizes in ((parent, ["1000", "2000"]), (child, ["5000"])):
        lines = (tmp_path / f"{process}-{process}.trace").read_text().splitlines()
        assert [line.split()[2] for line in lines if line[0] == "a"] == sizes


@pytest.mark.parametrize("command", [["trace", "info"], ["replay"], ["info"]])
def test_a_command_leaves_a_trace_as_it_is(tmp_path: Path, command: list[str]) -> None:
    """The option may be set still when a command reads the trace."""
    path = tmp_path / "trace"
    path.write_text("a 0 1000 0\nf 0\n")
    arguments = [*command, *([str(path)] if command != ["info"] else [])]
    variables = {"GLAKE_DRIVER": "sim", "GLAKE_TRACE": str(path)}
    done = own_python.run(Path("-m"), "glake", *arguments, **variables, timeout=60)
    assert done.returncode == 0, done.stderr
    assert path.read_text() == "a 0 1000 0\nf 0\n"


def test_a_trace_without_a_name_is_refused_by_its_name() -> None:
    with pytest.raises(FileFailed, match="No such file or directory: ''"):
        glake.record_trace("")


def test_events_followed_backwards_fit_the_segments() -> None:
    # memory_viz shows a moment by undoing events from the last. It fails if a segment or block that
    # an event names is not there.
    done = run("events_undone.py", GLAKE_LIMIT="64MiB", GLAKE_POLICY="compact")
    assert done.returncode == 0, done.stderr
    stitched, mapped = map(int, done.stdout.split())
    assert stitched > 10 and mapped > 20


@pytest.mark.parametrize(("name", "error"), [(3, TypeError), ("a\0b", ValueError)])
def test_tags_that_are_none_are_refused(name: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="a tag"), glake.tag(name):  # type: ignore[arg-type]
        pass
