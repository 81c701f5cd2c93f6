"""The stages of `make gpu`, in order, each with its time budget."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The folder of the run's logs and builds. A trial of the scripts uses another folder than a real
# run.
BUILD = Path(os.environ.get("GPU_LANE_BUILD") or ROOT / "build" / "gpu")
PROGRAMS = ROOT / "build" / "tests" / "lib"
PYTHON = sys.executable


@dataclass(frozen=True)
class Stage:
    """One command. Stages of the same `group` run side by side, groups one after another.

    seconds: the time budget, after which the stage is killed; "{seconds}" in the command becomes a
    little less. measures: the stage's result is JSON, which goes into the report. result: the file
    with the result (default: the standard output). background: the stage may still run in later
    groups, until the first group that measures. needs: the stages that must pass before this one.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    group: int
    measures: bool = False
    result: Path | None = None
    background: bool = False
    needs: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


ON_GPU_ONLY = ("adapter", "suites on the simulator", "jobs")


def _native(*arguments: str) -> tuple[str, ...]:
    return (PYTHON, str(ROOT / "tools" / "native.py"), *arguments)


def _pytest(*arguments: str) -> tuple[str, ...]:
    return (PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


def parallel(workers: int, together: str) -> tuple[str, ...]:
    """The options of pytest-xdist, if it is installed. All tests of one `together` ("file", "scope"
    or "group") run in the same process."""
    if importlib.util.find_spec("xdist") is None:
        return ()
    return ("-n", str(workers), "--dist", f"load{together}")


def stages(driver: str, quick: bool = False) -> list[Stage]:
    """All stages, on `driver` ("cuda" or "sim"). quick: short measurements, to try the scripts."""
    simulated = driver == "sim"
    library = "libsimcuda.so" if simulated else "libcuda.so.1"
    library_path = str(PROGRAMS / library) if simulated else library
    mark = ("--collect-only",) if simulated else ()
    short = quick or simulated
    memory, calls, copies = ("64", "2", "2") if short else ("8192", "25", "20")
    side_by_side, jobs = BUILD / "side_by_side.json", BUILD / "jobs.json"
    built = ("library", "programs")
    everything = [
        Stage(
            "library",
            (PYTHON, "setup.py", "-q", "egg_info", "--egg-base", str(BUILD / "site"))
            + ("build_ext", "--inplace"),
            150,
            group=1,
        ),
        Stage("programs", _native("--group", "tests"), 150, group=1),
        Stage(
            "adapter",
            (PYTHON, "-m", "glake.cli", "build-adapter"),
            90,
            group=2,
            needs=("library",),
        ),
        Stage(
            "conformance and stress",
            _native("--driver", driver, "--program", "conformance", "--program", "streams_test")
            + ("--run",),
            60,
            group=2,
            needs=("programs",),
        ),
        Stage(
            "granule stress",
            (str(PROGRAMS / "granule_stress"), library_path, "20" if short else "2000"),
            60,
            group=3,
            needs=("programs",),
        ),
        Stage(
            "suites on the simulator",
            _pytest(
                "tests", "-m", "not gpu", *parallel(max(2, (os.cpu_count() or 4) // 2), "file")
            ),
            200,
            group=2,
            background=True,
            needs=built,
        ),
        Stage(
            "tests on the GPU",
            _pytest(
                *("tests/gpu", "-m", "gpu", *mark),
                *parallel(max(2, min(8, (os.cpu_count() or 4) // 2)), "group"),
            ),
            180,
            group=4,
            needs=built,
        ),
        Stage(
            "driver calls",
            (str(PROGRAMS / "driver_calls"), library_path, memory, calls),
            15,
            group=5,
            measures=True,
            needs=("programs",),
        ),
        Stage(
            "driver lock",
            (str(PROGRAMS / "driver_lock"), library_path, "2" if short else "20"),
            25,
            group=6,
            measures=True,
            needs=("programs",),
        ),
        Stage(
            "dead handles",
            (str(PROGRAMS / "dead_handles"), library_path),
            25,
            group=6,
            measures=True,
            needs=("programs",),
        ),
        Stage(
            "parts of a handle",
            (str(PROGRAMS / "handle_parts"), library_path),
            10,
            group=6,
            measures=True,
            needs=("programs",),
        ),
        Stage(
            "copies",
            (str(PROGRAMS / "copies"), library_path, memory, copies),
            15,
            group=7,
            measures=True,
            needs=("programs",),
        ),
        Stage(
            "transfers",
            (PYTHON, "benchmarks/gpu/transfers.py", "--driver", driver)
            + (("--most", str(1 << 20), "--rounds", "2") if short else ()),
            20,
            group=8,
            measures=True,
            needs=("library",),
        ),
        Stage(
            "side by side",
            (PYTHON, "benchmarks/gpu/side_by_side.py", "--driver", driver)
            + ("--seconds", "{seconds}", "--out", str(side_by_side)),
            110,
            group=9,
            measures=True,
            result=side_by_side,
            needs=("library",),
        ),
        Stage(
            "jobs",
            (PYTHON, "benchmarks/gpu/jobs.py", "--seconds", "{seconds}", "--out", str(jobs)),
            120,
            group=10,
            measures=True,
            result=jobs,
            needs=("adapter",),
        ),
    ]
    if simulated:  # without a CUDA build of torch; the CPU suites run in CI
        everything = [stage for stage in everything if stage.name not in ON_GPU_ONLY]
    return everything
