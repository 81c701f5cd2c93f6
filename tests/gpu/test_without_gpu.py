"""Checks of the GPU's tests and measurements that need no GPU: they are collected, the names that
they use exist, and the scripts run on the simulator."""

import ast
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_running import PROGRAMS, PROGRAMS_WITH_CHECKS, ROOT, checks_of, run_checks, variables_of

TOOLS = ROOT / "tools"
SAMPLES = Path(__file__).parent / "samples"


def torch_names(path: Path) -> set[str]:
    """Dotted names that the file takes from torch, directly or by an import from torch."""
    tree = ast.parse(path.read_text())
    homes = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            homes |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        if isinstance(node, ast.Import):
            homes |= {each.asname: each.name for each in node.names
                      if each.asname and each.name.split(".")[0] == "torch"}  # fmt: skip
    found = set(homes.values())
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.expr | None = node if isinstance(node, ast.Attribute) else None
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and inner.id in homes and parts:
            found.add(".".join([homes[inner.id], *reversed(parts)]))
    return found


def exists(name: str) -> bool:
    """Whether torch has the name, or its own lists say that CUDA builds have it."""
    parts = name.split(".")
    at: object = torch
    for index, part in enumerate(parts[1:], 1):
        if not hasattr(at, part):
            module = ".".join(parts[: index + 1])
            # The module may not be imported yet, or its package has deleted its name.
            with contextlib.suppress(ImportError):
                at = importlib.import_module(module)
                continue
            if not hasattr(at, part):
                return at is torch._C and (f"def {part}(" in stubs() or name in listed())
        at = getattr(at, part)
    return True


def stubs() -> str:
    return (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text()


def listed() -> str:
    """torch.compile's list of the functions that it knows, with those of CUDA builds."""
    return (Path(torch.__file__).parent / "_dynamo" / "trace_rules.py").read_text()


@pytest.mark.parametrize(
    "path",
    [*sorted(PROGRAMS.glob("*.py")), *sorted((ROOT / "benchmarks" / "gpu").glob("*.py"))],
    ids=lambda path: path.name,
)
def test_every_name_of_torch_exists(path: Path) -> None:
    missing = sorted(name for name in torch_names(path) if not exists(name))
    assert not missing


def test_the_look_up_finds_a_wrong_name() -> None:
    names = torch_names(SAMPLES / "wrong_name.py")
    assert [name for name in names if not exists(name)] == ["torch.cuda.memory_alocated"]


def test_every_gpu_test_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", "--collect-only", "-q"]
        + ["-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = sum(len(checks_of(program)) for program in PROGRAMS_WITH_CHECKS)
    assert checks > 50
    collected = re.search(r"(\d+)(?:/\d+)? tests collected", done.stdout)
    assert collected and int(collected[1]) >= checks + 7
    for program in PROGRAMS_WITH_CHECKS:
        for check in checks_of(program):
            assert f"[{program.stem}-{check.removeprefix('check_')}]" in done.stdout


def test_programs_end_by_running_their_checks() -> None:
    for program in PROGRAMS_WITH_CHECKS:
        assert "main(globals())" in program.read_text(), program
    assert variables_of(PROGRAMS / "debugging.py") == {"GLAKE_DEBUG": "guard,poison,trace"}


def test_a_check_that_dies_costs_no_other() -> None:
    found = run_checks(SAMPLES / "dying_check.py")
    assert {name: row["status"] for name, row in found.items()} == {
        "check_one": "passed",
        "check_two": "failed",
        "check_three": "passed",
    }
    assert "7" in found["check_two"]["text"]


def test_kernels_are_found() -> None:
    ptx = (ROOT / "tests" / "conformance" / "kernels.ptx").read_text()
    entries = re.findall(r"\.entry (\w+)", ptx)
    assert entries == ["stamp_bytes", "add_one", "gather"]
    assert ptx.count("{") == ptx.count("}") and ".version" in ptx


def lane(*arguments: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(TOOLS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "gpulane", "--out", str(tmp_path / "out"), *arguments],
        env=os.environ | {"PYTHONPATH": path, "GPU_LANE_BUILD": str(tmp_path / "build")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )


def patterns(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu" / "patterns.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_the_patterns_say_so_in_a_sentence() -> None:
    done = patterns()
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"Error: patterns.py needs an NVIDIA GPU[^\n]*\.\n", done.stderr), (
        done.stderr
    )


def test_the_patterns_run_on_the_simulator() -> None:
    done = patterns("--driver", "sim", "--rounds", "1", "--memory", "0.125", "--json")
    assert done.returncode == 0, done.stderr
    lines = {(line["case"], line["subject"]): line for line in json.loads(done.stdout)["summary"]}
    cases = {case for case, _ in lines}
    assert {"steady", "mixed", "bursts", "trace"} < cases and len(cases) == 6
    for (case, subject), line in lines.items():
        key = "pairs_per_s" if case.startswith("C++") else "alloc_p50_ns"
        assert line["figures"][key] > 0, (case, subject)
    assert {subject for _, subject in lines} == {"glake", "native"}


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_a_sentence(tmp_path: Path) -> None:
    done = lane(tmp_path=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"make gpu needs an NVIDIA GPU[^\n]*\.\n", done.stderr), done.stderr
    assert not (tmp_path / "out").exists()


def test_the_measurements_run_on_the_simulator(tmp_path: Path) -> None:
    """All measurements and their report, without the build, which tests/sim does."""
    sys.path.insert(0, str(TOOLS))
    import native

    native.build(ROOT / "build" / "tests")
    names = ("granule stress", "driver calls", "copies", "transfers", "side by side")
    only = [word for name in names for word in ("--only", name)]
    done = lane("--driver", "sim", *only, tmp_path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "out").glob("*.json")
    report = json.loads(path.read_text())
    assert report["schema"] == 1 and report["about"]["driver"] == "sim"
    assert {stage["name"]: stage["status"] for stage in report["stages"]} == dict.fromkeys(
        names, "passed"
    )
    side = report["measured"]["side by side"]
    assert not side["lost"] and not side["errors"]
    assert side["ample"]["allocators"]["glake"]["losses_as_native"] is True
    assert side["tight"]["allocators"]["glake"]["step_ms"] > 0
    calls = {row["call"] for row in report["measured"]["driver calls"]["rows"]}
    assert {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"} <= calls
    text = path.with_suffix(".txt").read_text()
    assert "SIMULATED" in text and "What glake promises" in text and "Tight memory" in text
