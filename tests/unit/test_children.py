"""Child processes run this glake's modules, whatever is in the folder in which they are started."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from own_python import output

from glake import children
from glake.cli import main
from glake.trace import record

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def decoys(tmp_path, monkeypatch):
    """The current folder: packages that a child must not import."""
    for name in ("glake", "click", "torch", "json", "runpy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a decoy was imported')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("safe", ["", "1"])
def test_a_child_imports_this_glake_and_not_the_folders(decoys, monkeypatch, safe):
    import trace

    import glake

    (decoys / "shows").mkdir()
    shutil.copy(PROGRAMS / "glake_shown.py", decoys / "shows")
    monkeypatch.setenv("PYTHONPATH", str(decoys / "shows"))
    monkeypatch.setenv("PYTHONSAFEPATH", safe)
    done = subprocess.run(
        children.command("glake_shown", "-m", "a b"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ours, librarys, argv = json.loads(done.stdout)
    assert (ours, librarys) == (glake.__file__, trace.__file__)
    assert argv == [str(decoys / "shows" / "glake_shown.py"), "-m", "a b"]


def test_another_interpreter_runs_it(decoys):
    assert children.command("glake", python="/x/python")[0] == "/x/python"
    done = subprocess.run(children.command("glake", "--version"), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("glake, version"), done.stderr


def test_the_bench_among_decoys(decoys):
    pytest.importorskip("highspy")
    arguments = ["bench", "transfer", "--platform", "dgx1v", "--sizes", "256KiB"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output


def test_a_recording_among_decoys(decoys):
    """The target is looked for in the current folder. Modules that the child imports before the
    target are not."""
    pytest.importorskip("torch")
    shutil.copy(PROGRAMS / "one_tensor_job.py", decoys / "job.py")
    facts = record.record("job:make_step", decoys / "t.trace", steps=1)
    assert facts["allocations"] == 1


def test_every_child_is_started_with_a_safe_path():
    import glake

    root = os.path.dirname(glake.__file__)
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    text = file.read()
                assert 'sys.executable, "-m"' not in text, name
                assert 'sys.executable, "-c"' not in text, name


def test_the_switch_of_torch_takes_the_glake_beside_it(decoys):
    import glake_autoload

    # The program lies beside the decoys, so Python looks in their folder first.
    program = shutil.copy(PROGRAMS / "switch_of_torch.py", decoys)
    output(program, os.path.dirname(glake_autoload.__file__))
