"""Shows which unsafe edits of the allocator core and of the transfer engine the tests find.

    python tools/mutants.py [--only NAME]... [--log FILE]

tests/mutants/mutants.toml names each edit, and the case of a C++ test that must fail with it. An
edit is made in a copy of the checkout's tracked files (--tree, default build/mutants), never in the
checkout. The copy is built, and the case runs. The edit is printed as killed (the case fails) or
survived, and is undone. The exit code is 1 if an edit survives or cannot be tried. To be tried, its
old text must occur exactly once, the result must compile, and the case must pass without the edit.

It takes about ten minutes on two idle cores. `make mutants` runs it. Its last log is
tests/mutants/mutants.log.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import native

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants" / "mutants.toml"
BUILD = Path("build") / "tests"  # as in a checkout, so that a compiler cache has hits
TIMEOUT_S = 300  # of a case; a case that passes takes seconds, and one that hangs has failed
# Built without optimisation, because compiling takes most of the time.
FLAGS = "-DGLAKE_TEST_FLAGS=-O0"


class Mutant(NamedTuple):
    """One edit, and the test that must find it."""

    name: str
    file: str
    old: str
    new: str
    program: str
    case: str
    settings: dict[str, str]


def mutants() -> list[Mutant]:
    """The edits of the committed list. Raises ValueError if two have the same name."""
    with LIST.open("rb") as file:
        rows = tomllib.load(file)["mutant"]
    found = []
    for row in rows:
        program, case = row["killed_by"].split("/", 1)
        edit = (row["name"], row["file"], row["old"], row["new"])
        found.append(Mutant(*edit, program, case, row.get("settings", {})))
    if len({one.name for one in found}) != len(found):
        raise ValueError(f"{LIST}: two mutants have one name")
    return found


def edited(text: str, mutant: Mutant) -> str:
    """The file's text with the edit. Raises ValueError unless the old text occurs exactly once."""
    times = text.count(mutant.old)
    if times != 1:
        raise ValueError(f"{mutant.name}: its old text occurs {times} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def copy_checkout(tree: Path) -> None:
    """Copies the tracked files and the build to `tree`. Unchanged files keep their times."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = set(filter(None, listed.stdout.decode().split("\0")))
    for path in tree.rglob("*"):
        within = path.relative_to(tree)
        if path.is_file() and within.parts[0] != BUILD.parts[0] and str(within) not in names:
            path.unlink()
    for name in sorted(names):
        source, target = ROOT / name, tree / name
        if not source.is_file():
            continue
        text = source.read_bytes()
        if not target.is_file() or target.read_bytes() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)


def build(tree: Path, program: str) -> bool:
    """Builds one program of the tree. Returns False if it does not compile."""
    make = [native.find_tool("cmake"), "--build", str(tree / BUILD), "--target", program]
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    log = tree / BUILD / "mutant.log"
    with log.open("w") as file:
        return subprocess.run([*make, "simcuda", "--parallel", jobs], stdout=file).returncode == 0


def configure(tree: Path) -> None:
    """Makes the tree's build directory. Raises CalledProcessError if CMake fails."""
    (tree / BUILD).mkdir(parents=True, exist_ok=True)
    ninja = Path(sys.executable).parent / "ninja"
    options = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja.exists() else []
    options += ["-DGLAKE_PYTHON=OFF", "-DGLAKE_TESTS=ON", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    options += [FLAGS, f"-DPython_EXECUTABLE={sys.executable}"]
    command = [native.find_tool("cmake"), "-S", str(tree), "-B", str(tree / BUILD), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def outcome(tree: Path, mutant: Mutant) -> str:
    """Runs the mutant's case. Returns "" if it passes, else how it fails."""
    try:
        done = subprocess.run(
            [str(tree / BUILD / "lib" / mutant.program), "--filter", mutant.case],
            env=native.environment() | {"GLAKE_DRIVER": "sim"} | mutant.settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no end in {TIMEOUT_S} s"
    if done.returncode == 0:
        return ""
    lines = done.stdout.decode(errors="replace").replace(f"{tree}/", "").splitlines()
    said = next((line for line in lines if "not true" in line), lines[-1] if lines else "")
    return f"exit status {done.returncode}: {said.strip()[:140]}"


def tried(tree: Path, mutant: Mutant) -> str:
    """The mutant's line in the log: killed, survived or a fault of the list."""
    path = tree / mutant.file
    text = path.read_text()
    try:
        path.write_text(edited(text, mutant))
        if not build(tree, mutant.program):
            return "DOES NOT BUILD"
        why = outcome(tree, mutant)
    except ValueError as error:
        return f"CANNOT BE MADE ({error})"
    finally:
        path.write_text(text)
    return f"killed ({why})" if why else "SURVIVED"


def unchanged(tree: Path, chosen: list[Mutant]) -> dict[tuple[str, str], str]:
    """The cases that fail without a mutant, and how each fails."""
    wrong: dict[tuple[str, str], str] = {}
    for program in dict.fromkeys(one.program for one in chosen):
        if not build(tree, program):
            raise SystemExit(f"{program} does not build: {tree / BUILD / 'mutant.log'}")
    for one in chosen:
        key = (one.program, one.case)
        if key not in wrong:
            wrong[key] = outcome(tree, one)
    return {key: why for key, why in wrong.items() if why}


def main() -> int:
    """Tries the mutants. Returns 1 if one survives or cannot be tried."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--tree", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--log", type=Path, help="a file that gets the lines too")
    options = parser.parse_args()
    chosen = [one for one in mutants() if not options.only or one.name in options.only]
    if missing := set(options.only) - {one.name for one in chosen}:
        parser.error(f"no mutant is called {', '.join(sorted(missing))}")
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        if options.log is not None:
            options.log.write_text("\n".join(lines) + "\n")

    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    say(f"{datetime.date.today()}: {len(chosen)} mutants of {commit}, simulated driver")
    copy_checkout(options.tree)
    configure(options.tree)
    if wrong := unchanged(options.tree, chosen):
        for (program, case), why in wrong.items():
            say(f"{program}/{case} fails without any mutant: {why}")
        return 1
    killed = 0
    for one in chosen:
        result = tried(options.tree, one)
        killed += result.startswith("killed")
        say(f"{one.name}: {one.program}/{one.case}: {result}")
    say(f"{killed} of {len(chosen)} killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
