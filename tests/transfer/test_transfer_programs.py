"""Runs each file of inside/ in its own Python, because a process has one driver and one engine."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glake.platforms import Edge, Platform, file_text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# GLAKE_ variables of each program, besides those that all have.
PROGRAMS: dict[str, dict[str, str]] = {
    "blocks.py": {},
    "copies.py": {},
    "files.py": {},
    "gds.py": {},
    "handles.py": {"COPY_ORDER": "held"},  # only held copies can be cancelled or evade a link
    "host_memory.py": {},
    "kv_cache.py": {"SIM_MEMORY": "256MiB"},
    "lending.py": {},
    "nodes.py": {},
    "offload.py": {"SIM_MEMORY": "256MiB"},
    "streams.py": {},
    "tensors.py": {},
    "typed.py": {},
}


def run(*arguments: str, engine: str = "tcp", **options: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python on a simulated machine of eight A100, with an engine between nodes."""
    clean = {name: value for name, value in os.environ.items() if name[:6] != "GLAKE_"}
    settings = {"DRIVER": "sim:dgx_a100", "SIM_MEMORY": "128MiB"} | options
    given = {f"GLAKE_{name}": value for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, *arguments],
        env={
            **clean,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "NODE_BACKEND": engine,
            "UCX_TLS": "tcp",  # or it would use shared memory: TCP stands for the network
            **given,
        },
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_every_file_is_run() -> None:
    files = {path.name for path in (HERE / "inside").glob("*.py")}
    assert files - {"memory.py", "driver.py"} == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str) -> None:
    done = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"inside/{program}",
        **PROGRAMS[program],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr  # by objects that end with Python


def test_nodes_over_nixl() -> None:
    done = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "inside/nodes.py", engine="nixl"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_engines_are_measured() -> None:
    done = run(
        str(ROOT / "benchmarks" / "transfer" / "nodes.py"), "--mib", "8", "--rounds", "1", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {engine for _, _, engine, _ in found} == {"tcp", "nixl"} and len(found) == 10
    assert all(rate > 0 for _, way, _, (rate,) in found if way != "idle")
    (idle,) = (seconds for _, way, engine, (seconds,) in found if (way, engine) == ("idle", "tcp"))
    assert idle < 0.1  # it sleeps, and does not poll


@pytest.mark.proof
def test_killed_readers_do_no_harm() -> None:
    done = run("programs/killed_readers.py", "20", "8")  # on a busy machine 8 take longer
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 8, done.stdout


def test_importing_loads_nothing() -> None:
    done = run("programs/imports_nothing.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("held", ["held", "dropped"])
@pytest.mark.parametrize("size", [64 << 20, 4096])
def test_exit_while_a_copy_runs(held: str, size: int) -> None:
    done = run("programs/exit_beside_copy.py", str(size), held)
    assert (done.returncode, done.stderr) == (0, "")


def test_fork_is_a_typed_error() -> None:
    done = run("programs/forked_copy.py")
    assert (done.returncode, done.stderr) == (0, "")


PAIRS = {(0, 1), (2, 3)}  # of GPUs with NVLink


@pytest.mark.parametrize("peers", ["socket", "none"])
def test_hops_between_peers_over_a_root_complex(peers: str, tmp_path: Path) -> None:
    """Host memory is slow, so a hop between GPUs without NVLink brings more, where the driver
    allows it."""
    sides = [("m0", "s0", 14.0), *((("s0", f"g{gpu}", 10.0)) for gpu in range(4))]
    sides += [(f"g{a}", f"g{b}", 50.0) for a, b in sorted(PAIRS)]
    edges = [Edge(*ends) for a, b, rate in sides for ends in ((a, b, rate), (b, a, rate))]
    machine = tmp_path / "platforms.json"
    machine.write_text(file_text({"pairs": Platform(4, ((0, 1, 2, 3),), tuple(edges))}))
    done = run(
        "programs/gpu_to_gpu.py", "0", "3",
        DRIVER="sim:pairs", SIM_PLATFORMS=str(machine), SIM_PCIE_PEERS=peers,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    paths = [line.split(">") for line in done.stdout.split()]
    hops = {hop for path in paths if len(path) > 2 for hop in itertools.pairwise(path)}
    linked = {(f"cuda:{a}", f"cuda:{b}") for pair in PAIRS for a, b in (pair, pair[::-1])}
    crossing = {hop for hop in hops if all(end.startswith("cuda:") for end in hop)} - linked
    assert bool(crossing) == (peers == "socket"), paths
    assert any("cpu" in path for path in paths) == (peers == "none"), paths


def test_threads_of_destroyed_streams_serve_others() -> None:
    """The simulator's, of which each stream has one in the threaded schedule."""
    done = run("programs/threads_of_streams.py", SIM_SCHEDULE="threaded")
    assert done.returncode == 0, done.stderr
    threads = [int(line) for line in done.stdout.split()]
    assert threads[-1] < threads[0] + 10, threads


def test_memory_of_another_process() -> None:
    """A block opened from its owner's process is memory like any other."""
    done = run("programs/block_of_another.py", SIM_MACHINE=f"transfer-{os.getpid()}")
    assert done.returncode == 0, done.stderr
