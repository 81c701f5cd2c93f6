"""Programs that know nothing of glake, with and without its preloaded library (docs/intercept.md).

With it every byte and every order is as without it. The carried copies are counted.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glake import intercept
from glake.dryrun import libraries
from glake.errors import DriverAbsent, InvalidArgument
from glake.transfer.relay import modes

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
MIB = 1 << 20
COPY = 32 * MIB  # of programs/copies.c
_LAUNCHERS = ("LOCAL_", "WORLD_SIZE", "RANK", "OMPI_", "MPI_", "PMI_", "SLURM_")
WAYS = ("LINKED", "BY_NAME", "BY_GET")
# For each scenario: how many copies are carried, and by reason how many large ones are not.
SCENARIOS: dict[str, tuple[int, dict[str, int]]] = {
    "chains": (8, {}),
    "events": (5, {}),
    "legacy": (14, {}),
    "frees": (20, {}),
    "left": (
        0,
        {
            "pageable host memory": 2,  # and memory of which half is pinned
            "the per-thread default stream": 1,
            "managed memory": 1,
            "memory of a stream-ordered pool": 2,
            "memory of another GPU than the stream's": 1,
        },
    ),
    "graphs": (1, {"a stream under capture": 2}),
    "forks": (5, {}),
    "primary": (12, {"no primary context, or a stream of another one": 4}),
    "two_gpus": (3, {}),
    "exits": (8, {}),
    "libraries": (3, {}),
    "mapped": (2, {"memory of another GPU than the stream's": 2}),
}


def _headers() -> str:
    cache = next((ROOT / "build").glob("cmake-*/CMakeCache.txt")).read_text()
    found = re.search(r"^GLAKE_CUDA_INCLUDE:\w+=(.+)$", cache, re.MULTILINE)
    assert found is not None
    return found[1]


def _compile(source: Path, target: Path, *arguments: str) -> None:
    cc = shutil.which("cc") or shutil.which("gcc")
    assert cc is not None, "a C compiler, as glake's own build needs"
    command = [cc, "-O1", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(target), *arguments]
    subprocess.run(command, check=True)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs copies_WAY, one for each of WAYS to call the driver."""
    folder = tmp_path_factory.mktemp("programs")
    header = (PROGRAMS / "driver.h").read_text()
    symbols = sorted(set(re.findall(r'"(cu[A-Z]\w*)", \d+\)', header)))
    stub = folder / "stub.c"  # like a toolkit's: names to link with, without code
    stub.write_text("".join(f"int {symbol}(void) {{ return 999; }}\n" for symbol in symbols))
    library = folder / "libcuda.so"
    _compile(stub, library, "-shared", "-fPIC", "-fno-builtin", "-Wl,-soname,libcuda.so.1")
    for way in WAYS:
        linked = ["-L", str(folder), "-lcuda"] if way == "LINKED" else []
        more = [f"-D{way}", "-isystem", _headers(), *linked, "-ldl", "-lpthread"]
        _compile(PROGRAMS / "copies.c", folder / f"copies_{way}", *more)
    _compile(PROGRAMS / "next.c", folder / "libnext.so", "-shared", "-fPIC", "-ldl")
    return folder


def _clean() -> dict[str, str]:
    dropped = ("GLAKE_", "LD_PRELOAD", "CUDA_VISIBLE", *_LAUNCHERS)
    return {key: value for key, value in os.environ.items() if not key.startswith(dropped)}


def _run(
    command: list[str], env: dict[str, str], timeout: int = 120
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)


def plain(command: list[str], **variables: str) -> "subprocess.CompletedProcess[str]":
    return _run(
        command, libraries.environment(_clean() | {"GLAKE_SIM_PRESET": "dgx_a100"} | variables)
    )


class Told:
    """A run by `glake run --intercept`, and its report."""

    def __init__(self, command: list[str], folder: Path, *options: str, **variables: str) -> None:
        report = folder / "report.json"
        report.unlink(missing_ok=True)
        glake = [sys.executable, "-m", "glake.cli", "run", "--driver", "sim:dgx_a100"]
        given = [*glake, "--intercept-report", "--intercept-json", str(report), *options, *command]
        self.done = _run(given, _clean() | variables)
        lines = report.read_text().splitlines() if report.exists() else []
        self.reports: list[dict[str, Any]] = [json.loads(line) for line in lines]

    @property
    def report(self) -> dict[str, Any]:
        assert len(self.reports) == 1, (self.reports, self.done.stderr)
        return self.reports[0]

    def left(self) -> dict[str, int]:
        small = "smaller than GLAKE_INTERCEPT_MIN"
        return {why: each["copies"] for why, each in self.report["driver"].items() if why != small}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_as_without(programs: Path, tmp_path: Path, way: str, scenario: str) -> None:
    command = [str(programs / f"copies_{way}"), scenario]
    told = Told(command, tmp_path)
    assert told.done.returncode == 0, told.done.stderr
    without = plain(command)
    assert without.returncode == 0, without.stderr
    assert told.done.stdout == without.stdout and "all right\n" in told.done.stdout
    copies, left = SCENARIOS[scenario]
    carried = told.report["carried"]
    assert (carried["copies"], carried["bytes"]) == (copies, copies * COPY)
    assert carried["failed"] == 0 and told.left() == left
    if scenario != "exits":  # there the process ends before its copies
        assert carried["relayed"] == copies
        assert sum(told.report["paths"].values()) == copies * COPY
    assert f"carried {copies} cop" in told.done.stderr


@pytest.mark.parametrize("scenario", ["chains", "events", "legacy", "frees"])
@pytest.mark.parametrize(
    "simulator",
    [{"SEED": "1"}, {"SEED": "2"}, {"COMPLETION": "polled"}, {"SCHEDULE": "threaded"}],
    ids=lambda given: "-".join(given.values()),
)
def test_every_schedule(
    programs: Path, tmp_path: Path, scenario: str, simulator: dict[str, str]
) -> None:
    variables = {f"GLAKE_SIM_{key}": value for key, value in simulator.items()}
    told = Told([str(programs / "copies_BY_GET"), scenario], tmp_path, **variables)
    assert told.done.returncode == 0, told.done.stderr
    # With threads copies take real time, so the engine finds some links slow and leaves them.
    without_gain = told.left().pop("no second path pays", 0) if "SCHEDULE" in simulator else 0
    carried = told.report["carried"]["copies"]
    assert carried > 0 and carried + without_gain == SCENARIOS[scenario][0]


def test_threads_that_copy_free_and_allocate(programs: Path, tmp_path: Path) -> None:
    told = Told([str(programs / "copies_BY_NAME"), "threads"], tmp_path)
    assert told.done.returncode == 0, told.done.stderr
    freeing = "a free, or another call that waits for all work, was under way"
    # Other threads' copies may keep the relays so busy that a copy gains nothing by them.
    busy = "no second path pays"
    assert set(told.left()) <= {freeing, busy}
    assert told.report["carried"]["copies"] + sum(told.left().values()) == 32
    assert told.report["carried"]["copies"] > 0


@pytest.mark.parametrize("order", ["held", "whole"])
def test_threads_that_copy_while_the_process_ends(
    programs: Path, tmp_path: Path, order: str
) -> None:
    """It is no failure of a copy. The driver is said to shut down, where a copy does not go on."""
    orders = {"GLAKE_COPY_ORDER": "held"} if order == "held" else {}
    for _ in range(3):
        told = Told([str(programs / "copies_LINKED"), "exits_beside"], tmp_path, **orders)
        assert (told.done.returncode, told.done.stdout) == (0, "all right\n"), told.done.stderr
        assert "failed" not in told.done.stderr.lower()
        assert told.report["carried"]["copies"] > 0 and told.report["carried"]["failed"] == 0


def test_an_exit_handler_is_told_of_dropped_copies(programs: Path, tmp_path: Path) -> None:
    """With `held`, copies under way end with the engine. A wait must not say that they are done."""
    command = [str(programs / "copies_LINKED"), "exits"]
    told = Told(command, tmp_path, GLAKE_COPY_ORDER="held")
    assert (told.done.returncode, told.done.stdout) == (0, "all right\nwaited 4\n")


def test_another_context_is_left_alone(programs: Path, tmp_path: Path) -> None:
    told = Told([str(programs / "copies_LINKED"), "contexts"], tmp_path)
    assert told.done.returncode == 0, told.done.stderr
    assert told.left() == {"no primary context, or a stream of another one": 4}


def test_memory_of_another_process_is_left_alone(programs: Path, tmp_path: Path) -> None:
    machine = {"GLAKE_SIM_MACHINE": f"intercept-{os.getpid()}"}
    told = Told([str(programs / "copies_BY_GET"), "other_process"], tmp_path, **machine)
    assert told.done.returncode == 0 and told.done.stdout == "all right\n", told.done.stderr
    lefts = [set(report["driver"]) for report in told.reports]
    assert {"memory of another process"} in lefts, told.reports
    assert sum(report["carried"]["copies"] for report in told.reports) == 0


def test_a_path_that_fails_is_left(programs: Path, tmp_path: Path) -> None:
    """The GPU's own link fails three times. The program sees an error only without glake."""
    command = [str(programs / "copies_LINKED"), "one_fault"]
    assert "copied 0 waited 999" in plain(command).stdout
    told = Told(command, tmp_path, GLAKE_COPY_ORDER="held")
    assert told.done.stdout == "copied 0 waited 0 then 0 0 0\nall right\n", told.done.stderr
    assert told.report["carried"] == {"copies": 2, "bytes": 2 * COPY, "relayed": 2, "failed": 0}


def test_a_copy_that_fails_is_told_at_the_next_wait_and_for_good(
    programs: Path, tmp_path: Path
) -> None:
    told = Told([str(programs / "copies_LINKED"), "all_fail"], tmp_path)
    assert told.done.stdout == "copied 0 waited 719 then 719 719 719\nall right\n"
    assert told.done.stderr.count("a copy of 33554432 bytes failed: ") == 1
    assert told.report["carried"]["failed"] == 1


@pytest.mark.parametrize("engine", [[], ["engine"]])
def test_by_the_runtime(tmp_path: Path, engine: list[str]) -> None:
    """The CUDA runtime finds the driver by cuGetProcAddress. The program may have an engine too."""
    told = Told([str(PROGRAMS / "runtime.py"), *engine], tmp_path, PYTHONPATH=str(ROOT))
    assert told.done.returncode == 0, told.done.stderr
    # After the program's engine has ended, copies are carried no more.
    assert told.report["carried"]["copies"] == (6 if engine else 4)
    assert told.left() == ({"refused by glake's engine": 2} if engine else {})


@pytest.mark.parametrize("alone", [{"GLAKE_RELAYS": "own"}, {"LOCAL_WORLD_SIZE": "2"}])
def test_without_a_gain_the_driver_copies(
    programs: Path, tmp_path: Path, alone: dict[str, str]
) -> None:
    told = Told([str(programs / "copies_LINKED"), "chains"], tmp_path, **alone)
    assert told.done.returncode == 0, told.done.stderr
    assert told.report["carried"]["copies"] == 0 and told.left() == {"no second path pays": 8}


def test_relays_are_those_of_pythons_engine(programs: Path) -> None:
    """Where Python's engine would relay over all GPUs, so does the library. For one of several
    processes it relays over none, because only Python asks the service that lends GPUs."""
    counts = ("", "1", "2", "x", "1(x4)", "1(x)", "8(x2)", "1,8", "1(x4),8")
    names = (*modes._ON_NODE, *modes._IN_ALL)
    given = [{name: "2"} for name in names]
    given += [{"SLURM_STEP_TASKS_PER_NODE": count} for count in counts]
    given += [{name: "1", "WORLD_SIZE": "8"} for name in names if name != "WORLD_SIZE"]
    given += [{name: "", "PMI_SIZE": "8"} for name in modes._ON_NODE]
    given += [{"GLAKE_RELAYS": mode, "LOCAL_WORLD_SIZE": "8"} for mode in modes.MODES]
    given += [{}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "1"}, {"GLAKE_RELAYS": "own"}]
    env = intercept.environment(_clean() | {"GLAKE_DRIVER": "sim:dgx_a100"})
    env["GLAKE_INTERCEPT"] = "report"
    for variables in given:
        done = _run([str(programs / "copies_LINKED"), "chains"], env | variables)
        assert done.returncode == 0, done.stderr
        relayed = "carried 8 copies" in done.stderr
        assert relayed or "carried 0 copies" in done.stderr, done.stderr
        assert relayed == (modes.chosen(None, variables) == "all"), variables


def test_a_program_whose_name_is_no_utf8(programs: Path, tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b'caf\xe9 "\\')
    shutil.copy(programs / "copies_LINKED", program)
    env = intercept.environment(_clean() | {"GLAKE_DRIVER": "sim:dgx_a100"})
    env["GLAKE_INTERCEPT_JSON"] = str(tmp_path / "report")
    done = _run([str(program), "chains"], env)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report").read_text(encoding="utf-8"))
    assert Path(report["program"]).name == 'caf\ufffd "\\'


def test_least_bytes(programs: Path, tmp_path: Path) -> None:
    command = [str(programs / "copies_LINKED"), "chains"]
    told = Told(command, tmp_path, "--intercept-min", "33MiB")
    assert told.done.returncode == 0 and told.left() == {}
    assert told.report["carried"]["copies"] == 0


def test_rtld_next_of_other_libraries(programs: Path) -> None:
    env = intercept.environment(_clean() | {"GLAKE_DRIVER": "sim:dgx_a100"})
    env["LD_PRELOAD"] += os.pathsep + str(programs / "libnext.so")
    done = _run([sys.executable, str(PROGRAMS / "parent.py")], env)
    assert done.stdout == "4242\n", done.stderr


def test_functions_of_another_signature_are_left_alone(tmp_path: Path) -> None:
    driver, program = tmp_path / "libdriver.so", tmp_path / "program"
    _compile(PROGRAMS / "signatures.c", driver, "-DDRIVER", "-shared", "-fPIC")
    _compile(PROGRAMS / "signatures.c", program, "-ldl")
    done = _run([str(program), str(driver)], _clean() | {"LD_PRELOAD": str(intercept.library())})
    assert done.returncode == 0, done.stderr
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == {
        "get": "glake's",
        "get from get": "glake's",
        "copy": "glake's",
        "old copy": "the driver's",
        "later copy": "the driver's",
        "thread's copy": "the driver's",
        "thread's free": "glake's",
        "copy by name": "glake's",
        "other by name": "the driver's",
        "none by name": "none",
        "none by get": "500",
    }


def test_a_driver_that_a_library_has_for_itself(programs: Path, tmp_path: Path) -> None:
    """As an extension module of Python that is linked to libcuda. The stand-ins are not preloaded
    here, because they would be in the global scope, where a GPU's driver is not."""
    library, program = tmp_path / "liblocal.so", tmp_path / "program"
    more = ["-isystem", _headers(), "-shared", "-fPIC", "-L", str(programs), "-lcuda"]
    _compile(PROGRAMS / "local.c", library, "-DLIBRARY", *more)
    _compile(PROGRAMS / "local.c", program, "-ldl")
    said = []
    for mode in ("0", "report"):
        env = intercept.environment(_clean() | {"GLAKE_DRIVER": "sim:dgx_a100"})
        env |= {"LD_PRELOAD": str(intercept.library()), "GLAKE_INTERCEPT": mode}
        if mode == "0":
            del env["LD_PRELOAD"]
        done = _run([str(program), str(library)], env)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    assert said[0] == said[1] == "no driver yet: 1 1\nall right\n"
    assert "carried 2 copies" in done.stderr, done.stderr


def test_other_gpus_than_looked_at(programs: Path) -> None:
    env = intercept.environment(_clean() | {"GLAKE_DRIVER": "sim:dgx_a100"})
    env |= {"CUDA_VISIBLE_DEVICES": "2,3", "GLAKE_INTERCEPT": "report"}
    done = _run([str(programs / "copies_LINKED"), "chains"], env)
    assert done.returncode == 0 and "intercept is off" in done.stderr
    assert 'is "2,3": set it before' in done.stderr and "carried 0 copies" in done.stderr


def test_chosen_gpus(programs: Path, tmp_path: Path) -> None:
    """Chosen GPUs have CUDA's numbers. Their links are looked up in the simulated machine."""
    told = Told([str(programs / "copies_LINKED"), "chains"], tmp_path, CUDA_VISIBLE_DEVICES="2,5")
    assert told.done.returncode == 0, told.done.stderr
    assert "intercept is off" not in told.done.stderr
    assert told.report["carried"]["copies"] + sum(told.left().values()) == 8


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"GLAKE_INTERCEPT": "maybe"}, "GLAKE_INTERCEPT=maybe: it takes 0, 1 or report"),
        ({"GLAKE_INTERCEPT_MIN": "much"}, "GLAKE_INTERCEPT_MIN=much: it takes bytes"),
        ({"GLAKE_INTERCEPT_TOPOLOGY": "/nowhere.json"}, "cannot read GLAKE_INTERCEPT_TOPOLOGY"),
        ({"GLAKE_INTERCEPT_TOPOLOGY": ""}, "nothing is known of the GPUs' links"),
        ({"GLAKE_INTERCEPT_TOPOLOGY": "{"}, "GLAKE_INTERCEPT_TOPOLOGY: "),
        ({"GLAKE_UNHEARD": "1"}, "unheard"),
        ({"GLAKE_DRIVER": "/nowhere/libcuda.so"}, "cannot open the driver"),
    ],
)
def test_set_wrongly_by_hand(programs: Path, variables: dict[str, str], said: str) -> None:
    """`glake run` would refuse these variables. A library that is preloaded by hand prints one
    message, and leaves all copies to the driver."""
    env = intercept.environment(_clean() | {"GLAKE_DRIVER": "sim:dgx_a100"}) | variables
    done = _run([str(programs / "copies_LINKED"), "chains"], env)
    assert done.returncode == 0 and done.stdout == "all right\n", done.stderr
    assert done.stderr.count("intercept is off") == 1 and said in done.stderr, done.stderr


def test_programs_that_make_no_copy(tmp_path: Path) -> None:
    told = Told(["sh", "-c", "exit 7"], tmp_path)
    assert told.done.returncode == 7 and told.reports == [] and told.done.stderr == ""


def test_no_such_program(tmp_path: Path) -> None:
    for name in ("no_such_program", str(tmp_path)):
        told = Told([name], tmp_path)
        assert told.done.returncode == 1
        assert f"no such program: {name}" in told.done.stderr
    with pytest.raises(InvalidArgument, match="no such program"):
        intercept.command("no_such_program", (), False)


def test_without_a_driver(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "glake.cli", "run", "--intercept", "true"]
    done = _run(command, _clean() | {"GLAKE_DRIVER": "/nowhere/libcuda.so"})
    assert done.returncode == 1 and "true was not run: " in done.stderr


def test_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intercept, "library_path", lambda: tmp_path / "libglake.so")
    with pytest.raises(DriverAbsent, match="libglake_intercept.so is not there"):
        intercept.environment({})
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "libglake_intercept.so").touch()
    monkeypatch.setattr(intercept, "library_path", lambda: tmp_path / "a b" / "libglake.so")
    with pytest.raises(InvalidArgument, match="a colon or a blank"):
        intercept.environment({})


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "glake.cli", "run", "--intercept-min", "1MiB", "x.py"]
    done = _run(command, _clean())
    assert done.returncode == 2 and "--intercept-min needs --intercept" in done.stderr
    told = Told(["true"], tmp_path, "--intercept-json", str(tmp_path / "no" / "report"))
    assert told.done.returncode == 1 and "cannot write a report" in told.done.stderr
