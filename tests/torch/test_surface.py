"""glake's own names: context managers, sharing, and errors that one `except` catches."""

import pytest

import glake


def test_a_recording_ends_with_its_block(passes, tmp_path):
    program = f"""
        import glake, torch
        with glake.record_trace({str(tmp_path / "job.trace")!r}) as recording:
            torch.ones(1000)
        size = recording.path.stat().st_size
        torch.ones(1000)
        assert size == recording.path.stat().st_size
        again = glake.record_trace({str(tmp_path / "again.trace")!r})
        again.stop()
        again.stop()
        print(sum(line.startswith("a ") for line in recording.path.read_text().splitlines()))
    """
    assert passes(program) == ["1"]


def test_a_pin_ends_with_its_block(passes):
    program = """
        import glake
        from glake import _C
        block = _C.malloc(4 << 20)
        with glake.pin(block):
            _C.free(block)
            assert glake.stats()["glake.pinned_bytes"] == 4 << 20
        print(glake.stats()["glake.pinned_bytes"])
        glake.pin(_C.malloc(1 << 20))
    """
    assert passes(program) == ["0"]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda: glake.contiguous("best").__enter__(), glake.InvalidArgument),
        (lambda: glake.tag(3).__enter__(), glake.errors.WrongType),
        (lambda: glake.region("a", budget=1.5).__enter__(), glake.errors.WrongType),
    ],
)
def test_wrong_arguments_are_glake_errors(wrong, kind):
    with pytest.raises(kind):
        wrong()
    assert issubclass(kind, glake.GlakeError)
