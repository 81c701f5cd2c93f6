"""The `glake` command, run as its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import glake


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    command = [sys.executable, "-m", "glake.cli", *arguments]
    return subprocess.run(command, env=kept | variables, capture_output=True, text=True)


def test_library_is_the_path_alone() -> None:
    assert run("info", "--library").stdout == f"{glake.library_path()}\n"


def test_info_on_the_simulator() -> None:
    done = run("info", "--json", "--check", GLAKE_DRIVER="sim", GLAKE_SIM_DEVICES="3")
    facts = json.loads(done.stdout)
    assert done.returncode == 0
    assert facts["simulated"] is True and facts["devices"] == 3
    assert facts["driver_library"].endswith("libsimcuda.so")
    assert facts["version"] == glake.__version__
    assert facts["options"]["GLAKE_SIM_DEVICES"] == "3"


def test_info_reports_an_absent_driver() -> None:
    shown = run("info", "--json", GLAKE_DRIVER="/nowhere/libcuda.so")
    assert shown.returncode == 0
    facts = json.loads(shown.stdout)
    assert facts["devices"] == 0 and "/nowhere/libcuda.so" in facts["driver_error"]
    checked = run("info", "--check", GLAKE_DRIVER="/nowhere/libcuda.so")
    assert checked.returncode == 1 and "no GPU: " in checked.stderr


def test_wrong_variable_is_an_error() -> None:
    done = run("info", GLAKE_DRVER="sim")
    assert done.returncode == 1 and "did you mean GLAKE_DRIVER" in done.stderr


def test_topo() -> None:
    one = run("topo", "--preset", "dgx1v", "--json")
    assert one.returncode == 0 and json.loads(one.stdout)["dgx1v"]["gpus"] == 8
    wrong = run("topo", "--preset", "dgx9")
    assert wrong.returncode == 2 and "dgx1v" in wrong.stderr


def test_run_sets_variables_and_passes_arguments(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys\n"
        "print(sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith('GLAKE_')})\n"
        "sys.exit(7)\n"
    )
    done = run("run", "--driver", "sim", "--limit", "90%", str(script), "--limit", "x", "-m")
    assert done.returncode == 7
    variables = {"GLAKE_ALLOCATOR": "1", "GLAKE_DRIVER": "sim", "GLAKE_LIMIT": "90%"}
    assert done.stdout.strip() == f"{['--limit', 'x', '-m']} {variables}"


def test_run_a_module() -> None:
    done = run("run", "-m", "json.tool", "--help")
    assert done.returncode == 0 and "json" in done.stdout


def test_run_refuses_a_wrong_option_before_starting(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("print('started')")
    done = run("run", "--policy", "best", str(script))
    assert done.returncode == 1 and "GLAKE_POLICY='best'" in done.stderr and not done.stdout
    missing = run("run", str(tmp_path / "none.py"))
    assert missing.returncode == 1 and "no such script" in missing.stderr
    trace = run("run", "--trace", str(tmp_path / "none" / "a.trace"), str(script))
    assert trace.returncode == 1 and "cannot write a trace" in trace.stderr and not trace.stdout


def test_groups_list_whole_sentences_and_one_word_stands_for_a_folder() -> None:
    for group in ("trace", "bench"):
        shown = run(group, "--help").stdout.partition("Commands:")[2]
        assert shown and "..." not in shown, shown
    shown = run("build-adapter", "--help").stdout
    assert "--torch-headers DIR " in shown and "headers in DIR" in shown
    assert "DIRECTORY" not in shown
