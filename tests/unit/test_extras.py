"""Each command that lacks a package names it, and the extra that brings it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glake import children, extras
from glake.cli import main
from glake.errors import PlanError
from glake.trace import fake_cuda, record
from glake.transfer.topology import dot

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from requirements import requirements  # noqa: E402

README = (ROOT / "README.md").read_text()
TOPO = ["topo", "--preset", "dgx_a100"]
BENCH = ["bench", "transfer", "--platform", "dgx1v", "--sizes", "1MiB"]
PROGRAMS = Path(__file__).parent / "programs"
# A torch that calls itself a CUDA build and cannot be imported.
CUDA_BUILD = Path(__file__).parent / "packages" / "cuda_build"


def names(extra: str) -> set[str]:
    """The packages that an extra brings, with those of the extras that it names."""
    base = requirements(ROOT / "pyproject.toml", [])
    found: set[str] = set()
    for line in requirements(ROOT / "pyproject.toml", [extra])[len(base) :]:
        nested = re.fullmatch(r"glake\[(.+)\]", line)
        inner = nested.group(1).split(",") if nested else []
        found |= set().union(*map(names, inner)) if nested else {re.split("[=><]", line)[0]}
    return found


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hides a package from this process, and Graphviz too, which would stand in for matplotlib."""
    monkeypatch.setattr(dot, "program", lambda: None)

    def take(module: str) -> None:
        monkeypatch.setitem(sys.modules, module, None)

    return take


@pytest.mark.parametrize(
    ("module", "package", "arguments"),
    [
        ("jinja2", "jinja2", ["replay", "sample", "--html", "OUT.html"]),
        ("jinja2", "jinja2", ["plan", "gpt2", "--seq", "64", "--html", "OUT.html"]),
        ("matplotlib", "matplotlib", ["replay", "sample", "--plot", "OUT.png"]),
        ("matplotlib", "matplotlib", [*TOPO, "--picture", "OUT.svg"]),
        ("matplotlib", "matplotlib", [*BENCH, "--plot", "OUT.svg"]),
        ("highspy", "highspy", BENCH),
        ("pynvml", "nvidia-ml-py", ["topo"]),
        ("transformers", "transformers", ["plan", "gpt2", "--seq", "64"]),
        ("peft", "peft", ["plan", "gpt2", "--seq", "64", "--lora", "8"]),
    ],
)
def test_the_command_names_the_extra(
    without: Any, tmp_path: Path, module: str, package: str, arguments: list[str]
) -> None:
    if arguments[0] == "plan":
        pytest.importorskip("torch")
    without(module)
    words = [str(tmp_path / each) if each.startswith("OUT") else each for each in arguments]
    said = CliRunner(env={"GLAKE_DRIVER": None}).invoke(main, words)
    assert said.exit_code == 2, said.output
    text = " ".join(said.stderr.split())
    extra = re.search(r'which is not installed: pip install "glake\[(\w+)\]"', text)
    assert extra, text
    assert package in names(extra.group(1))
    assert list(tmp_path.iterdir()) == []


def test_a_broken_package_is_not_called_absent() -> None:
    text = extras.missing("a bound", "HiGHS", "transfer", ImportError("wrong ELF class"))
    assert "which cannot be imported (wrong ELF class)" in text and "glake[transfer]" in text


@pytest.mark.parametrize("target", ["gpt2", "jobs:make_step"])
def test_a_plan_without_torch_names_the_cpu_build(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """torch is named before any package that requires it, as pip would bring the CUDA build."""
    monkeypatch.setattr(extras, "present", lambda module: module != "torch")
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = CliRunner().invoke(main, ["plan", target])
    assert said.exit_code == 2 and extras.TORCH_CPU in " ".join(said.stderr.split())


def test_build_adapter_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name)
    )
    fake_cuda.adapter_build.installed_torch.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    said = CliRunner().invoke(main, ["build-adapter"])
    text = " ".join(said.stderr.split())
    assert said.exit_code == 1 and f"without one the CPU build: {extras.TORCH_CPU}" in text
    assert "with a GPU its CUDA build: pip install torch;" in text, said.exception


def test_a_cuda_build_is_told_what_records(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(CUDA_BUILD))
    fake_cuda.adapter_build.installed_torch.cache_clear()
    said = CliRunner().invoke(main, ["plan", "jobs:make_step"])
    fake_cuda.adapter_build.installed_torch.cache_clear()
    text = " ".join(said.stderr.split())
    assert said.exit_code == 2 and "torch 2.14.1+cu130 is a CUDA build" in text
    assert f"cpu-torch/bin/{extras.TORCH_CPU}" in text and "--python cpu-torch/bin/python" in text


def test_python_names_whose_torch_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch of `python` records, even if glake is installed beside another torch (in the
    site-packages of a CUDA build), and whatever is in the current folder."""
    pytest.importorskip("torch")
    shutil.copytree(CUDA_BUILD, tmp_path / "site")
    (tmp_path / "site" / "glake").symlink_to(ROOT / "glake")
    monkeypatch.setattr(children, "__file__", str(tmp_path / "site" / "glake" / "children.py"))
    here = tmp_path / "here"
    (here / "glake").mkdir(parents=True)
    (here / "glake" / "__init__.py").write_text("raise ImportError('the current folder')")
    shutil.copy(PROGRAMS / "one_tensor_job.py", here / "jobs.py")
    monkeypatch.chdir(here)
    out = tmp_path / "job.trace.gz"
    facts = record.record("jobs:make_step", out, python=sys.executable, steps=1)
    assert facts["peak_live_bytes"] >= 4 << 20
    with pytest.raises(PlanError, match="there is no such folder|cannot start"):
        record.record("jobs:make_step", out, python=str(tmp_path / "no-python"), steps=1)


def test_no_extra_of_the_readme_brings_a_torch() -> None:
    """The package index has torch as a CUDA build, which `glake plan` cannot use."""
    lines = re.findall(r'pip install "\.\[(.+?)\]"', README)
    assert lines, "the README's line of extras"
    brought = set().union(*(names(each) for line in lines for each in line.split(",")))
    assert not brought & {"torch", "peft"}
    assert brought >= {"transformers", "jinja2", "matplotlib", "highspy", "nvidia-ml-py"}
    assert README.index(extras.TORCH_CPU) < README.index('pip install ".[')


def test_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`glake replay sample` works in any folder. A file of that name comes first, but no folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "sample").mkdir()
    for folder in (tmp_path, tmp_path / "folder"):
        monkeypatch.chdir(folder)
        said = CliRunner().invoke(main, ["replay", "sample", "--policy", "bound"])
        assert said.exit_code == 0 and "2.37 GiB" in said.stdout, said.output
        assert CliRunner().invoke(main, ["trace", "info", "sample"]).exit_code == 0
    (tmp_path / "folder" / "sample").rmdir()
    (tmp_path / "folder" / "sample").write_text("mine")
    assert CliRunner().invoke(main, ["replay", "sample"]).exit_code == 2
    packed = resources.files("glake.trace") / "assets" / "sample.trace.gz"
    assert len(packed.read_bytes()) < 64 << 10
    assert "glake replay sample" in README


def test_the_trainer_without_torch(monkeypatch):
    from click.testing import CliRunner

    from glake import extras
    from glake.trainer.__main__ import main

    monkeypatch.setattr(extras, "present", lambda module: module != "torch")
    ended = CliRunner().invoke(main, ["--list"])
    assert ended.exit_code == 1 and extras.TORCH in ended.output
