"""The `glake` command, run as its own process."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import own_python
import pytest
from own_python import output

import glake
from glake import config

DATA = ("platforms.json", "costs.json")  # the simulator reads them from its own folder

PROGRAMS = Path(__file__).parent / "programs"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    command = [sys.executable, "-m", "glake.cli", *arguments]
    return subprocess.run(command, env=kept | variables, capture_output=True, text=True)


def test_library_is_the_path_alone() -> None:
    assert run("info", "--library").stdout == f"{glake.library_path()}\n"


@pytest.mark.parametrize(
    "both", [("--library", "--include"), ("--include", "--options"), ("--options", "--json")]
)
def test_info_prints_one_thing(both: tuple[str, str]) -> None:
    done = run("info", *both)
    assert (done.returncode, done.stdout) == (2, "")
    assert "print different things: give one" in done.stderr


def test_info_on_the_simulator() -> None:
    done = run("info", "--json", "--check", GLAKE_DRIVER="sim", GLAKE_SIM_DEVICES="3")
    facts = json.loads(done.stdout)
    assert done.returncode == 0
    assert facts["simulated"] is True and facts["devices"] == 3
    assert facts["driver_library"].endswith("libsimcuda.so")
    assert facts["version"] == glake.__version__
    assert facts["options"]["GLAKE_SIM_DEVICES"] == "3"


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_options_are_listed_whole_at_any_width(columns: str) -> None:
    done = run("info", "--options", COLUMNS=columns)
    lines = done.stdout.splitlines()
    for option in config.OPTIONS.values():
        at = lines.index(f"GLAKE_{option.name}={option.default}")
        assert lines[at + 1].strip() == f"takes {option.takes}"
        assert lines[at + 2].strip() == option.meaning


@pytest.mark.parametrize(
    "arguments", [("topo", "--preset", "dgx1v", "--picture"), ("replay", "sample", "--plot")]
)
def test_a_home_that_takes_no_files_is_no_matter(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    picture = tmp_path / "a.png"
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    # Not even root can make a folder in /dev/null.
    home = {"HOME": "/dev/null", "TMPDIR": str(scratch), "GLAKE_DRIVER": "sim"}
    done = run(*arguments, str(picture), **home)
    assert done.returncode == 0, done.stderr
    assert "mkdir" not in done.stderr and "atplotlib" not in done.stderr
    assert "ontconfig" not in done.stderr
    assert picture.stat().st_size > 0 and list(scratch.iterdir()) == []


def test_nothing_needs_installed_metadata(tmp_path: Path) -> None:
    """A checkout found by PYTHONPATH has no metadata of glake, and torch's may be missing too."""
    page = tmp_path / "page.html"
    said = output(PROGRAMS / "without_metadata.py", str(page), GLAKE_DRIVER="sim")
    assert said.startswith(f"glake, version {glake.__version__}\n")
    assert glake.__version__ in page.read_text(encoding="utf-8")


def test_info_says_whose_owed_bytes_it_shows() -> None:
    assert "owed bytes, this process  0\n" in run("info", GLAKE_DRIVER="sim").stdout


def test_a_limit_of_addresses_is_named() -> None:
    """The error names `ulimit -v`, which is below a device's addresses, and says what helps."""
    program = PROGRAMS / "first_use.py"
    command = f"ulimit -v 2000000; exec {sys.executable} {program}"
    environ = {**os.environ, "GLAKE_DRIVER": "sim", "GLAKE_SIM_MEMORY": "4GiB"}
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environ)
    assert ran.returncode != 0
    assert "1.91 GiB of addresses in all (ulimit -v)" in ran.stderr, ran.stderr
    assert "GLAKE_SIM_MEMORY" in ran.stderr


def test_a_simulator_without_addresses_names_what_limits_them() -> None:
    ran = own_python.run(PROGRAMS / "few_addresses.py", GLAKE_DRIVER="sim")
    assert ran.returncode != 0
    assert "it reserves 160 MiB of addresses" in ran.stderr and "(ulimit -v)" in ran.stderr


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


def test_run_sets_variables_and_passes_arguments() -> None:
    script = str(PROGRAMS / "arguments.py")
    done = run("run", "--driver", "sim", "--limit", "90%", script, "--limit", "x", "-m")
    assert done.returncode == 7
    variables = {
        "GLAKE_ALLOCATOR": "1",
        "GLAKE_DRIVER": "sim",
        "GLAKE_LIMIT": "90%",
        "GLAKE_STRICT": "1",
    }
    assert done.stdout.strip() == f"{['--limit', 'x', '-m']} {variables}"


def test_run_a_module() -> None:
    done = run("run", "--driver", "sim", "-m", "json.tool", "--help")
    assert done.returncode == 0 and "json" in done.stdout


def test_run_refuses_a_wrong_option_before_starting(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("print('started')")
    done = run("run", "--policy", "best", str(script))
    assert done.returncode == 1 and "GLAKE_POLICY='best'" in done.stderr and not done.stdout
    for name in ("driver", "policy", "limit", "trace"):
        empty = run("run", f"--{name}", "", str(script))
        assert empty.returncode == 2 and f"--{name} is empty: it takes " in empty.stderr
    missing = run("run", str(tmp_path / "none.py"))
    assert missing.returncode == 1 and "no such script" in missing.stderr
    trace = run("run", "--trace", str(tmp_path / "none" / "a.trace"), str(script))
    assert trace.returncode == 1 and "cannot write a trace" in trace.stderr and not trace.stdout


def test_run_fails_without_a_driver_before_the_script_starts(tmp_path: Path) -> None:
    script = PROGRAMS / "strict.py"
    driver = "/nowhere/libcuda.so"
    for command in (["--driver", driver], ["--driver", driver, "--trace", str(tmp_path / "t")]):
        done = run("run", *command, str(script))
        assert done.returncode == 1 and not done.stdout
        (line,) = done.stderr.strip().splitlines()
        assert "was not run: cannot open the driver" in line and driver in line
        assert "--driver sim" in line and "--allow-fallback" in line
    assert list(tmp_path.iterdir()) == []
    unset = run("run", str(script), GLAKE_DRIVER=driver)
    assert unset.returncode == 1 and not unset.stdout
    allowed = run("run", "--driver", driver, "--allow-fallback", str(script))
    assert (allowed.returncode, allowed.stdout) == (0, "started 0\n")
    # The warning comes although the script never imports torch, which would start glake.
    (line,) = allowed.stderr.strip().splitlines()
    assert f"{script} runs without glake: cannot open the driver" in line and driver in line
    off = run("run", "--allocator", "0", "--driver", driver, str(script))
    assert (off.returncode, off.stderr) == (0, "")
    simulated = run("run", "--driver", "sim", str(script), GLAKE_STRICT="0")
    assert (simulated.returncode, simulated.stdout) == (0, "started 1\n")


def test_run_fails_where_torch_cannot_use_the_driver(tmp_path: Path) -> None:
    """A CPU build of torch over what passes for a real driver: `import torch` is an error."""
    script = PROGRAMS / "torch_cuda.py"
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    driver = tmp_path / "libcuda.so"  # under another name the simulator passes for a real driver
    for name, link in (("libsimcuda.so", driver.name), *[(each, each) for each in DATA]):
        (tmp_path / link).symlink_to(glake.library_path().with_name(name))
    done = run("run", "--driver", str(driver), str(script))
    assert done.returncode == 1 and "has no CUDA" in done.stderr and not done.stdout
    allowed = run("run", "--driver", str(driver), "--allow-fallback", str(script))
    assert (allowed.returncode, allowed.stdout) == (0, "went on None\n")
    assert "glake is off" in allowed.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [["info"], ["info", "--json"], ["--version"], ["trace", "--help"], ["topo"],
     ["topo", "--plan", "cpu", "cuda:0"], ["topo", "--list"], ["trace", "info", "sample"],
     ["replay", "sample", "--json"]],
    ids=" ".join,
)  # fmt: skip
def test_an_output_that_cannot_be_written_is_one_line(
    arguments: list[str], unbuffered: str
) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "glake.cli", *arguments],
            env=kept | {"GLAKE_DRIVER": "sim", "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.stderr == "Error: cannot write the output: No space left on device\n"
    assert done.returncode == 1


def test_groups_list_whole_sentences_and_one_word_stands_for_a_folder() -> None:
    for group in ("trace", "bench"):
        shown = run(group, "--help").stdout.partition("Commands:")[2]
        assert shown and "..." not in shown, shown
    shown = run("build-adapter", "--help").stdout
    assert "--torch-headers DIR " in shown and "headers in DIR" in shown
    assert "DIRECTORY" not in shown
