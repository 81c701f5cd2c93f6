"""The Python face of watching, without torch: each program in a Python of its own."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from glake.allocator import snapshot
from glake.errors import InvalidArgument

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run() -> Run:
    """run(code, **GLAKE variables without prefix)."""

    def run(code: str, **options: object) -> subprocess.CompletedProcess[str]:
        given = {"DRIVER": "sim", "SIM_MEMORY": "256MiB", "SIM_DEVICES": "2", **options}
        clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**clean, **{f"GLAKE_{name}": str(value) for name, value in given.items()}},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_bad_values_are_refused() -> None:
    for bad in ({"enabled": "some"}, {"stacks": "c"}, {"max_entries": 0}):
        with pytest.raises(InvalidArgument, match="record_memory_history"):
            snapshot.record_memory_history(**bad)


def test_snapshot_and_history_of_plain_blocks(run: Run) -> None:
    done = run("""
        import glake
        from glake import _C

        def allocate_here(size, device=0):
            with glake.tag("outer"), glake.tag("inner"):
                return _C.malloc(size, device)

        old = _C.malloc(1000)
        glake.record_memory_history(max_entries=100)
        block, other = allocate_here(5 << 20), allocate_here(3000, 1)
        _C.free(other)
        shot = glake.snapshot()
        (mine,) = (b for s in shot["segments"] for b in s["blocks"] if b["address"] == block)
        assert mine["state"] == "active_allocated" and mine["requested_size"] == 5 << 20, mine
        assert mine["user_metadata"] == "inner"
        names = [frame["name"] for frame in mine["frames"]]
        assert "allocate_here" in names and names[-1] == "<module>", names
        first, second = shot["device_traces"]
        assert [e["action"] for e in first] == ["segment_map", "alloc", "snapshot"], first
        assert all(e["frames"][0]["name"] == "allocate_here" for e in first[:2]), first
        actions = ["segment_map", "alloc", "free_requested", "free_completed", "snapshot"]
        assert [e["action"] for e in second] == actions, second
        assert {s["device"] for s in shot["segments"]} == {0, 1}
        for s in shot["segments"]:
            assert sum(b["size"] for b in s["blocks"]) == s["total_size"]
        stats = glake.stats(0)
        mine = [s for s in shot["segments"] if s["device"] == 0]
        assert sum(s["total_size"] for s in mine) == stats["reserved_bytes.all.current"]
        assert sum(s["allocated_size"] for s in mine) == stats["allocated_bytes.all.current"]
        assert shot["allocator_settings"]["glake.policy"] == "balanced"
        glake.record_memory_history(None)
        shot = glake.snapshot()
        assert not any(shot["device_traces"]) and {s["device"] for s in shot["segments"]} == {0, 1}
        glake.record_memory_history("state", stacks="all")
        block = _C.malloc(100)
        (mine,) = (b for s in glake.snapshot()["segments"] for b in s["blocks"]
                   if b["address"] == block)
        assert any("libglake" in frame["filename"] for frame in mine["frames"]), mine["frames"]
    """)
    assert done.returncode == 0, done.stderr


def test_check_and_findings_name_the_damage(run: Run) -> None:
    done = run(
        """
        import ctypes, glake
        from glake import _C

        block, freed = _C.malloc(1000), _C.malloc(500)
        ctypes.memset(block + 1000, 1, 2)
        try:
            glake.check()
        except glake.Corrupted as error:
            print(error)
        glake.check()
        _C.free(freed)
        ctypes.memset(freed, 7, 1)
        try:
            glake.check()
        except glake.Corrupted as error:
            print(error)
        ctypes.memset(block - 1, 1, 1)
        ctypes.memset(block + 1023, 1, 1)
        _C.free(block)
        found = glake.findings()
        print(len(found), glake.findings())
        """,
        DEBUG="guard,poison,sync",
    )
    assert done.returncode == 0, done.stderr
    assert "write past the end of a block" in done.stdout
    assert "of 1000 bytes" in done.stdout and "2 bytes changed" in done.stdout
    assert "write after free" in done.stdout and "of 500 bytes" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 []"


def test_tag_decorates_and_ends_with_an_exception(run: Run) -> None:
    done = run("""
        import glake
        from glake import _C

        @glake.tag("decorated")
        def make():
            return _C.malloc(700)

        try:
            with glake.tag("raised"):
                raise KeyError
        except KeyError:
            pass
        tagged, plain = make(), _C.malloc(700)
        tags = {b["address"]: b.get("user_metadata")
                for s in glake.snapshot()["segments"] for b in s["blocks"]}
        assert (tags[tagged], tags[plain]) == ("decorated", None), tags
    """)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_is_told(run: Run) -> None:
    done = run(
        """
        import os, glake
        from glake import _C

        glake.record_memory_history()
        block = _C.malloc(1000)
        child = os.fork()
        if child == 0:
            for call in (glake.snapshot, glake.findings, glake.check,
                         lambda: _C.free(block), glake.record_memory_history):
                try:
                    call()
                except glake.Forked:
                    continue
                os._exit(1)
            with glake.tag("child"):
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        _C.free(block)
        """,
        DEBUG="guard,poison,trace",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("before", ["", "_C.free(_C.malloc(1000))"])
def test_a_forked_child_writes_nothing_into_the_trace(
    run: Run, tmp_path: Path, before: str
) -> None:
    # Whether it may use glake itself, as it may before the driver is used, or not.
    path = tmp_path / "trace"
    done = run(
        f"""
        import os, sys, glake
        from glake import _C

        _C.configure("trace", {str(path)!r})
        {before}
        child = os.fork()
        if child == 0:
            try:
                _C.free(_C.malloc(2000))
            except glake.Forked:
                pass
            sys.exit(0)  # the C library's buffers are written out
        assert os.waitpid(child, 0)[1] == 0
        _C.free(_C.malloc(3000))
        _C.shutdown()
        """
    )
    assert done.returncode == 0, done.stderr
    lines = path.read_text().splitlines()
    assert sum(line[0] == "#" for line in lines) == 2, lines
    sizes = [line.split()[2] for line in lines if line[0] == "a"]
    assert sizes == (["1000", "3000"] if before else ["3000"])


def test_events_followed_backwards_fit_the_segments(run: Run) -> None:
    # memory_viz shows every moment by undoing events from the last; it fails where a segment or
    # block that an event names is not there.
    done = run(
        """
        import random
        import glake
        from glake import _C

        def undo_all(shot):
            segments = {s["address"]: s["total_size"] for s in shot["segments"]}
            blocks = {b["address"] for s in shot["segments"] for b in s["blocks"]
                      if b["state"] != "inactive"}

            def holder(at, size):
                inside = [a for a, n in segments.items() if a <= at and at + size <= a + n]
                assert len(inside) == 1, (hex(at), size)
                return inside[0]

            def join(at, size):
                if at + size in segments:
                    size += segments.pop(at + size)
                before = [a for a, n in segments.items() if a + n == at]
                if before:
                    at, size = before[0], segments.pop(before[0]) + size
                segments[at] = size

            mapped = 0
            for event in reversed(shot["device_traces"][0]):
                action, at, size = event["action"], event.get("addr"), event["size"]
                if action == "free_completed":
                    blocks.add(at)
                elif action == "free_requested":
                    assert at in blocks
                elif action == "alloc":
                    blocks.remove(at)
                elif action == "segment_unmap":
                    join(at, size)
                elif action == "segment_map":
                    mapped += 1
                    base = holder(at, size)
                    whole = segments.pop(base)
                    if at > base:
                        segments[base] = at - base
                    if at + size < base + whole:
                        segments[at + size] = base + whole - at - size
                for block in blocks:
                    holder(block, 1)
            return mapped, segments

        glake.record_memory_history(max_entries=100000)
        random.seed(7)
        live, sizes = [], (3, 700, 2500, 5000, 9000, 15000, 21000)
        for step in range(400):
            if live and random.random() < 0.5:
                _C.free(live.pop(random.randrange(len(live))))
            else:
                try:
                    live.append(_C.malloc(random.choice(sizes) << 10))
                except glake.OutOfMemory:
                    _C.free(live.pop(0))
            if step % 150 == 149:
                _C.empty_cache()
        shot = glake.snapshot()
        stats = glake.stats()
        mapped, left = undo_all(shot)
        assert not left, left
        print(stats["glake.stitches"] + stats["glake.view_hits"], mapped)
        """,
        LIMIT="64MiB",
        POLICY="compact",
    )
    assert done.returncode == 0, done.stderr
    stitched, mapped = map(int, done.stdout.split())
    assert stitched > 10 and mapped > 20


@pytest.mark.parametrize(("name", "error"), [(3, TypeError), ("a\0b", ValueError)])
def test_tags_that_are_none_are_refused(name: object, error: type[Exception]) -> None:
    import glake

    with pytest.raises(error, match="a tag"), glake.tag(name):  # type: ignore[arg-type]
        pass
