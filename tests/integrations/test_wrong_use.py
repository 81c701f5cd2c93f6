"""Hooks armed twice, packages that are missing, too old or too new: the user gets a message, and
the job goes on."""

from __future__ import annotations

import sys
import types
from importlib import metadata

import pytest

from glake import errors, integrations
from glake.integrations import figures, vllm


@pytest.fixture
def hook(request, monkeypatch):
    """A stand-in with the facts of a hook. Its package is one that is always there."""
    ours = integrations._hook(request.param)
    fake = types.SimpleNamespace(PACKAGE="json", VERSIONS=ours.VERSIONS, calls=[])
    fake.version = lambda: ours.VERSIONS[0]
    fake.install = lambda: fake.calls.append("install")
    monkeypatch.setattr(integrations, "_hook", lambda _: fake)
    return fake


@pytest.mark.parametrize("hook", integrations.NAMES, indirect=True)
def test_a_version_that_was_not_tried_is_named_and_left(hook) -> None:
    first, below = hook.VERSIONS
    for version in ("0.0.1", below, "99.0"):
        hook.version = lambda version=version: version
        with pytest.raises(errors.VersionUntried, match=f"json {version} is left as it is") as told:
            integrations.install("any")
        assert f"from {first} to below {below}" in str(told.value)
    assert hook.calls == []


@pytest.mark.parametrize("hook", integrations.NAMES, indirect=True)
def test_a_missing_package_is_named(hook) -> None:
    hook.PACKAGE = "no_such_package.inside"
    with pytest.raises(errors.GlakeError, match=": no_such_package is not installed"):
        integrations.install("any")

    def missing() -> str:
        raise metadata.PackageNotFoundError("json")

    hook.version = missing
    with pytest.raises(errors.GlakeError, match=": no_such_package is not installed"):
        integrations.check_version("any")
    hook.PACKAGE = "json"
    with pytest.raises(errors.VersionUntried, match="json of no known version is left as it is"):
        integrations.install("any")
    assert hook.calls == []


@pytest.mark.parametrize("hook", ["deepspeed"], indirect=True)
def test_a_package_that_lacks_another_is_not_called_missing(hook, monkeypatch, tmp_path) -> None:
    (tmp_path / "lacking.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    hook.PACKAGE = "lacking"
    with pytest.raises(errors.GlakeError, match=r"cannot be imported: .*'no_such_dependency'"):
        integrations.install("any")
    assert hook.calls == []


@pytest.mark.parametrize("hook", ["deepspeed"], indirect=True)
@pytest.mark.parametrize("error", [AttributeError("no thing"), ModuleNotFoundError("no thing")])
def test_what_a_hook_does_not_find_is_told_with_the_version(hook, error) -> None:
    def install() -> None:
        raise error

    hook.install = install
    text = rf"^json {hook.version()} is left as it is: .* does not find what .*: no thing$"
    with pytest.raises(errors.GlakeError, match=text):
        integrations.install("any")
    assert "glake.integrations.any.installed" not in figures.told()


def test_vllm_without_its_function_is_left(monkeypatch) -> None:
    there = types.ModuleType(vllm.PACKAGE)
    monkeypatch.setitem(sys.modules, vllm.PACKAGE, there)
    monkeypatch.setattr(vllm.allocator, "mode", lambda: "emulation")
    with pytest.raises(errors.GlakeError, match="has no get_mem_allocator_instance"):
        vllm.install()
    assert not vllm._undo


def test_vllms_plug_in_warns_of_what_it_does_not_find(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setattr(vllm, "version", lambda: vllm.VERSIONS[0])
    text = r"^vllm 0\.32 is left as it is: .*: No module named 'vllm\.v1'"
    with pytest.warns(RuntimeWarning, match=text):
        vllm.register()


def test_a_misspelt_name_names_the_nearest() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"'deepsped' \(did you mean 'deepspeed'\?\)"):
        integrations.install("deepsped")


@pytest.mark.parametrize("name", [None, 3, ["cupy"]])
def test_what_is_no_name_is_refused(name: object) -> None:
    for call in (integrations.install, integrations.uninstall):
        with pytest.raises(errors.WrongType, match="named by a string, such as 'cupy', not"):
            call(name)


@pytest.mark.parametrize("name", ["cupy", "fsdp2", "memory_saver", "vllm"])
def test_armed_twice_is_armed_once(program, name) -> None:
    assert program("armed_twice", name).stdout == "as it was\n"


def test_figures_add_up() -> None:
    before = figures.told().get("glake.integrations.none.bytes", 0)
    figures.add("none", "bytes", 3)
    figures.add("none", "bytes", 4)
    assert figures.told()["glake.integrations.none.bytes"] == before + 7
