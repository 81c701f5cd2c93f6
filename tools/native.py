"""Builds the C++ test programs (or the benchmarks') and, with --run, runs them.

    tools/native.py [--group tests|benchmarks] [--build DIR] [--sanitize LIST]
                    [--program NAME]... [--run] [--driver sim|cuda|PATH] [-- ARGUMENTS]

Used by tests/sim, tools/gpulane and the Makefile. There is one program per
source file, as CMakeLists.txt says; a test program exits 0 when all its checks hold.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "tests": (
        "tests/conformance/*.cpp",
        "tests/core/*.cpp",
        "tests/core/*.c",
        "tests/fuzz/*.cpp",
        "benchmarks/gpu/*.cpp",
    ),
    "benchmarks": ("benchmarks/*.cpp", "benchmarks/[!g]*/*.cpp"),
}
# Test programs that also run on a GPU (--driver). They take the driver's library as first argument,
# or use the C interface alone. All others test the simulator, or need its books.
TAKE_LIBRARY = (
    "conformance",
    "granule_stress",
    "driver_calls",
    "driver_lock",
    "copies",
    "dead_handles",
    "handle_parts",
)
NEUTRAL = ("streams_test",)


def programs(group: str = "tests") -> list[str]:
    """The names of the group's programs. There is one for each source."""
    return sorted(source.stem for glob in SOURCES[group] for source in ROOT.glob(glob))


def find_tool(name: str) -> str:
    """The tool beside this Python or on PATH. Raises FileNotFoundError, which says how to install
    it."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} was not found: pip install {name}")
    return found


def build(
    directory: Path,
    group: str = "tests",
    sanitize: str = "",
    targets: Sequence[str] = (),
    definitions: Sequence[str] = (),
) -> Path:
    """Builds the group, or `targets` of it. Returns the folder of its programs. `definitions` go to
    CMake. Raises CalledProcessError if a build fails.

    Tests keep their assertions. Benchmarks are optimised like the installed library. Warnings are
    errors if CMAKE_ARGS says so, as for the library.
    """
    werror = "ON" if "GLAKE_WERROR=ON" in os.environ.get("CMAKE_ARGS", "") else "OFF"
    cmake, ninja = find_tool("cmake"), shutil.which("ninja", path=str(Path(sys.executable).parent))
    configure = [cmake, "-S", str(ROOT), "-B", str(directory), "-DGLAKE_PYTHON=OFF"]
    if ninja and not (directory / "CMakeCache.txt").exists():
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-DGLAKE_{group.upper()}=ON"]
    configure += [f"-DCMAKE_BUILD_TYPE={'RelWithDebInfo' if group == 'tests' else 'Release'}"]
    configure += [f"-DGLAKE_SANITIZE={sanitize}", f"-DGLAKE_WERROR={werror}"]
    configure += [f"-D{definition}" for definition in definitions]
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    make = [cmake, "--build", str(directory), "--parallel", jobs, "--target"]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:  # tests of two workers may want the same programs
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*make, *(targets or [f"glake_{group}"]), "simcuda"], check=True)
    return directory / "lib"


def environment() -> dict[str, str]:
    """This process's environment, in which sanitizers fail on any finding. GLAKE_DRIVER is glake's
    only option in it.

    The driver is the simulator, unless the caller's environment names another one.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    kept["GLAKE_DRIVER"] = os.environ.get("GLAKE_DRIVER", "sim")
    kept.setdefault("ASAN_OPTIONS", "detect_leaks=1:halt_on_error=1")
    kept.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
    kept.setdefault("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1")
    return kept


def driver_library(driver: str) -> str:
    """What dlopen takes for `driver`: sim, cuda or a path."""
    return {"sim": "libsimcuda.so", "cuda": "libcuda.so.1"}.get(driver, driver)


def on_driver(name: str, driver: str) -> tuple[list[str], dict[str, str]]:
    """The first arguments and the variables with which program `name` runs on `driver`.

    Raises ValueError if it runs only on the simulator.
    """
    if name in TAKE_LIBRARY:
        return [driver_library(driver)], {}
    if driver == "sim":
        return [], {}
    if name not in NEUTRAL:
        raise ValueError(f"{name} runs on the simulator only")
    # The program is linked to simcuda. The other driver is preloaded, so its symbols come first.
    return [], {"TEST_DRIVER": driver, "LD_PRELOAD": driver_library(driver)}


def run(binaries: Path, name: str, arguments: list[str], driver: str | None = None) -> int:
    """Runs one program in its own process and returns its exit status."""
    first, variables = ([], {}) if driver is None else on_driver(name, driver)
    # A sanitizer's dlopen does not follow the program's own search path.
    where = f"{binaries}:{binaries / 'cuda'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    paths = {"LD_LIBRARY_PATH": where.rstrip(":")}
    command = [str(binaries / name), *first, *arguments]
    env = environment() | paths | variables
    if name == "reentry_test":  # it calls glake in signal handlers on purpose
        env["TSAN_OPTIONS"] += ":report_signal_unsafe=0"
    return subprocess.run(command, env=env).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("--group", choices=sorted(SOURCES), default="tests")
    parser.add_argument("--build", type=Path, help="build directory (default: build/<group>)")
    parser.add_argument("--sanitize", default="")
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--driver", help="sim, cuda or a path: where neutral programs run")
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    neutral = [*TAKE_LIBRARY, *NEUTRAL]
    names = options.program or (neutral if options.driver else programs(options.group))
    if unknown := set(names) - set(programs(options.group)):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if options.driver not in (None, "sim") and set(names) - set(neutral):
        parser.error(f"on another driver than sim, only: {', '.join(neutral)}")
    if options.run and not names:
        parser.error(f"there are no {options.group} to run")
    directory = options.build or ROOT / "build" / options.group
    try:
        binaries = build(directory, options.group, options.sanitize, targets=options.program)
    except subprocess.CalledProcessError as failure:
        return failure.returncode  # the compiler has printed why
    failed = []
    for name in names if options.run else []:
        print(f"== {name}", flush=True)
        if run(binaries, name, options.arguments, options.driver) != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
