"""PyTorch's allocator settings under glake: honoured, or named in one warning."""

import warnings

import pytest

from glake import config
from glake.allocator import alloc_conf

NONE = config.read({})


@pytest.mark.parametrize(
    ("text", "fraction", "ignored"),
    [
        ("", None, []),
        ("expandable_segments:True, backend:native", None, []),
        ("expandable_segments:False", None, ["expandable_segments"]),
        ("per_process_memory_fraction:0.5", 0.5, []),
        ("per_process_memory_fraction:0.0", 0.0, []),
        ("per_process_memory_fraction:1", 1.0, []),
        ("per_process_memory_fraction:5e-1", 0.5, []),
        (
            "roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb:64",
            None,
            ["max_split_size_mb"],
        ),
        ("pinned_num_register_threads:4", None, ["pinned_num_register_threads"]),
    ],
)
def test_keys(text, fraction, ignored):
    settings = alloc_conf.read({"PYTORCH_CUDA_ALLOC_CONF": text})
    assert settings is not None
    assert settings.fraction == fraction
    assert settings.ignored(NONE) == ignored


@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan", "half", ""])
def test_a_fraction_that_is_none(value):
    settings = alloc_conf.read({"PYTORCH_ALLOC_CONF": f"per_process_memory_fraction:{value}"})
    assert settings is not None
    with pytest.raises(ValueError, match=f"PYTORCH_ALLOC_CONF: .*:{value} is not a number from 0"):
        _ = settings.fraction


def test_a_fraction_counts_at_the_start_alone():
    later = alloc_conf.AllocConf("V", {"per_process_memory_fraction": "0.5"}, at_start=False)
    assert later.fraction is None and later.ignored(NONE) == list(later.given)


def test_first_variable_counts():
    both = {"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "b:2"}
    settings = alloc_conf.read(both)
    assert settings is not None and list(settings.given) == ["a"]
    assert alloc_conf.read({}) is None


def test_glakes_own_options_go_first():
    settings = alloc_conf.AllocConf("V", {"per_process_memory_fraction": "0.5", "pinned_x": "1"})
    assert settings.ignored(config.read({"GLAKE_LIMIT": "0.9"})) == list(settings.given)
    assert settings.ignored(config.read({"GLAKE_HOST_ALLOCATOR": "0"})) == []


def test_one_warning_and_never_an_error(capsys):
    settings = alloc_conf.AllocConf("V", {"a": "1", "b": "2"})
    with pytest.warns(RuntimeWarning, match="V: a, b have no effect") as warned:
        settings.warn(NONE)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.warn(NONE)
    assert "V: a, b have no effect" in capsys.readouterr().err
