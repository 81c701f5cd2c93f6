"""glake's own names: context managers, sharing, and errors that one `except` catches."""

import pytest

import glake


def test_a_recording_ends_with_its_block(passes, tmp_path):
    assert passes("recordings.py", str(tmp_path)) == ["1"]


def test_a_pin_ends_with_its_block(passes):
    assert passes("pin_of_block.py") == ["0"]


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
