"""GLAKE_ALLOCATOR works in every process that imports torch, and does nothing when it is off."""

import json
import sys

import pytest

import glake
import glake_autoload
from glake.allocator.torch import mode


def test_does_nothing_unless_asked(passes, monkeypatch):
    assert passes("glakes_modules.py", ALLOCATOR=None) == ["[]"]
    monkeypatch.setitem(sys.modules, "glake.allocator.torch", None)  # importing it would fail
    for off in ("", "0", "off", "False"):
        monkeypatch.setenv("GLAKE_ALLOCATOR", off)
        glake_autoload.load()


def test_isolated_mode_and_no_device_touched_before_the_first_tensor(passes):
    lines = passes("isolated.py", flags=("-I",), SIM_MEMORY=None)
    assert lines[:2] == ["'' unopened", "True glake"]
    assert 0.5 < float(lines[2]) < 2  # the host's free memory changes meanwhile


@pytest.mark.parametrize("first", [("glake_autoload", "glake"), ("glake.allocator.torch",)])
def test_glake_may_be_imported_before_torch(passes, first):
    assert passes("mode.py", *first) == ["emulation"]


FAILURES = {
    "no CUDA in torch": ("GLAKE_DRIVER", "cuda", "set GLAKE_DRIVER=sim"),
    "misspelt variable": ("GLAKE_POLCY", "compact", "GLAKE_POLICY"),
    "bad value": ("GLAKE_POLICY", "smart", "balanced or compact"),
    "basic on the simulator": ("GLAKE_ALLOCATOR", "basic", "GLAKE_ALLOCATOR=1"),
    "no memory to give": ("GLAKE_SIM_PHANTOM", "1", "glake replay"),
    "unknown option": ("GLAKE_NO_SUCH", "1", "no option GLAKE_NO_SUCH"),
    "unknown mode": ("GLAKE_ALLOCATOR", "maybe", "0, 1 or basic"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_a_warning_or_when_strict_an_error(monkeypatch, case):
    variable, value, words = FAILURES[case]
    monkeypatch.setenv("GLAKE_ALLOCATOR", "1")
    monkeypatch.setenv("GLAKE_DRIVER", "sim")
    monkeypatch.setenv(variable, value)
    with pytest.warns(RuntimeWarning, match=f"glake is off.*{words}"):
        glake_autoload.load()
    monkeypatch.setenv("GLAKE_STRICT", "1")
    with pytest.raises(glake.GlakeError, match=words):
        glake_autoload.load()
    assert mode() is None


def test_a_misspelt_integration_costs_its_hook_and_not_the_allocator(run):
    done = run("integrations_left.py", INTEGRATIONS="megatorn,cupy, nothing at all")
    assert (done.returncode, done.stdout) == (0, "emulation\ncupy\n"), done.stderr
    assert "no integration 'megatorn' (did you mean megatron?); it is left out" in done.stderr
    assert "no integration 'nothing at all'; it is left out" in done.stderr
    strict = run("integrations_left.py", INTEGRATIONS="megatorn", STRICT=1)
    assert strict.returncode != 0 and "did you mean megatron?" in strict.stderr
    enabled = run("enabled_twice.py", "{}", on=False, DRIVER="sim", INTEGRATIONS="All")
    assert "InvalidOption" in enabled.stderr and "did you mean all?" in enabled.stderr


def test_an_absent_driver_is_a_warning_at_the_first_tensor(run):
    done = run("first_tensor.py", DRIVER="/absent/libsimcuda.so")
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr
    assert "Warning: glake is off" in done.stderr and "/absent/libsimcuda.so" in done.stderr


def test_strict_stops_the_program(run):
    for driver, words in (("/absent/libsimcuda.so", "/absent/libsimcuda.so"), ("cuda", "=sim")):
        done = run("first_tensor.py", STRICT=1, DRIVER=driver)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr and "Traceback" in done.stderr


def test_no_compiler_is_said(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "absent-g++")
    done = run("mode.py", JIT_DIR=tmp_path)
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert "no C++ compiler" in done.stderr and "absent-g++" in done.stderr
    assert not list(tmp_path.glob("*.so"))


def test_import_torch_survives_warnings_as_errors(run):
    done = run("first_tensor.py", flags=("-Werror",), DRIVER="cuda")
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr
    assert "GLAKE_DRIVER=sim" in done.stderr


def test_spawned_children_have_it_too(passes):
    assert passes("spawn.py") == ["emulation", "emulation"]


@pytest.mark.parametrize("options", [{}, {"driver": "sim", "policy": "compact"}])
def test_enable_that_imports_torch_goes_before_the_environment(passes, options):
    assert passes("enabled_twice.py", json.dumps(options)) == [
        "emulation " + ("compact" if options else "balanced")
    ]
