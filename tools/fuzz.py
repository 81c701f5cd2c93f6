"""Fuzzes the C interface on the simulated driver, under ASan and UBSan, for some seconds.

    tools/fuzz.py [--seconds 60] [--random] [--seed N] [--operations N]

With clang libFuzzer makes the input, and its corpus is kept in build/fuzz/corpus. Without clang, or
with --random, the input is random (tests/fuzz/core_fuzz.cpp). A random run ends after --operations,
if that is given, and otherwise after --seconds. A finding is printed as the body of a test. The
exit status is then not 0.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import native

ROOT = native.ROOT
CORPUS = ROOT / "build" / "fuzz" / "corpus"
CALLS = 800  # calls in one input; each takes four bytes


def find_clang() -> str | None:
    """The newest clang++ on PATH."""
    names = ["clang++", *(f"clang++-{version}" for version in range(30, 13, -1))]
    return next((path for name in names if (path := shutil.which(name))), None)


def environment(binaries: Path) -> dict[str, str]:
    """The test programs' environment. ASan keeps short stacks, because long ones take much time."""
    kept = native.environment() | {"GLAKE_DRIVER": "sim", "LD_LIBRARY_PATH": str(binaries)}
    kept["ASAN_OPTIONS"] += ":malloc_context_size=4"
    return kept


def fuzz(clang: str, seconds: int) -> int:
    """Runs libFuzzer and returns its exit status."""
    c = clang.replace("clang++", "clang")
    compilers = [f"CMAKE_CXX_COMPILER={clang}", f"CMAKE_C_COMPILER={c}", "GLAKE_FUZZER=ON"]
    binaries = native.build(
        ROOT / "build" / "fuzz",
        sanitize="address,undefined",
        targets=["core_fuzz"],
        definitions=compilers,
    )
    CORPUS.mkdir(parents=True, exist_ok=True)
    for seed in range(8):  # long inputs to start from: short ones never fill the memory
        (CORPUS / f"seed-{seed}").write_bytes(random.Random(seed).randbytes(4 * (1 + CALLS)))
    options = [f"-max_total_time={seconds}", f"-max_len={4 * (1 + CALLS)}", "-timeout=60"]
    artifacts = f"-artifact_prefix={CORPUS.parent}/"
    command = [str(binaries / "core_fuzz"), *options, "-len_control=0", artifacts, str(CORPUS)]
    return subprocess.run(command, env=environment(binaries)).returncode


def play(seconds: int, seed: int, operations: int) -> int:
    """Runs random input in a process for each core, each with a seed of its own. Returns the worst
    exit status."""
    binaries = native.build(
        ROOT / "build" / "address-undefined", sanitize="address,undefined", targets=["core_fuzz"]
    )
    jobs = os.cpu_count() or 1
    share = -(-operations // jobs)
    how_much = ["--operations", str(share)] if operations else ["--seconds", str(seconds)]
    players = [
        subprocess.Popen(
            [str(binaries / "core_fuzz"), "--seed", str(seed + job), *how_much],
            env=environment(binaries),
            cwd=binaries,
        )
        for job in range(jobs)
    ]
    return max(abs(player.wait()) for player in players)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--operations", type=int, default=0)
    options = parser.parse_args()
    clang = None if options.random else find_clang()
    if clang is None and not options.random:
        print("no clang++ on PATH: random input instead of libFuzzer (apt-get install clang)")
    try:
        if clang is not None:
            return fuzz(clang, options.seconds)
        return play(options.seconds, options.seed, options.operations)
    except subprocess.CalledProcessError as failure:
        return int(failure.returncode)  # the compiler has printed why


if __name__ == "__main__":
    sys.exit(main())
