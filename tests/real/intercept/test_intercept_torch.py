"""torch's own copies, by the CUDA build, carried by the preloaded library (docs/intercept.md).

Results are the same, a share is carried, and copies that must not be carried are left.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).resolve().parent / "programs" / "copies.py"
MIB = 1 << 20
SCENARIOS = ("default_stream", "pageable", "streams_and_events", "graphs", "threads", "loader")


def run(
    python: str, folder: Path, *options: str, **variables: str
) -> tuple["subprocess.CompletedProcess[str]", dict[str, Any]]:
    report = folder / "report.json"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    glake = [sys.executable, "-m", "glake.cli", "run", "--driver", "sim:dgx_a100"]
    given = [*glake, "--intercept-json", str(report), *options, python, str(PROGRAM)]
    done = subprocess.run(given, env=kept | variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(lines) == 1, lines  # the loader's workers make no copies
    return done, lines[0]


@pytest.mark.parametrize("segments", ["False", "True"])
def test_same_as_without(real_python: str, tmp_path: Path, segments: str) -> None:
    config = f"expandable_segments:{segments}"
    done, report = run(real_python, tmp_path, PYTORCH_CUDA_ALLOC_CONF=config)
    assert done.stdout == "".join(f"{name} True\n" for name in SCENARIOS)
    carried, left = report["carried"], report["driver"]
    assert carried["failed"] == 0 and carried["bytes"] >= 300 * MIB
    assert left["pageable host memory"]["bytes"] >= 2 * 16 * MIB
    assert left["a stream under capture"] == {"copies": 2, "bytes": 32 * MIB}
    assert sum(report["paths"].values()) == carried["bytes"]
    assert carried["relayed"] > 0


def test_without(real_python: str) -> None:
    """The program runs by PyTorch alone."""
    from glake.dryrun import libraries

    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    env = libraries.environment(kept | {"GLAKE_SIM_PRESET": "dgx_a100"})
    done = subprocess.run([real_python, str(PROGRAM)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{name} True\n" for name in SCENARIOS)


def test_beside_glakes_allocator(real_python: str, tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    told = subprocess.run([real_python, "-V"], capture_output=True, text=True).stdout
    if f" {version}." not in told:
        pytest.skip(f"left out: REAL_PYTHON is not {version}, which glake is built for here")
    done, report = run(
        real_python, tmp_path, "--allocator", "1", PYTHONPATH=str(ROOT), GLAKE_STRICT="1"
    )
    assert done.stdout == "".join(f"{name} True\n" for name in SCENARIOS)
    assert report["carried"]["failed"] == 0 and report["carried"]["bytes"] >= 300 * MIB


def test_polled(real_python: str, tmp_path: Path) -> None:
    _, report = run(real_python, tmp_path, GLAKE_SIM_COMPLETION="polled")
    assert report["carried"]["bytes"] >= 300 * MIB


def test_ranks_that_share_a_node(real_python: str, tmp_path: Path) -> None:
    """Two ranks, as torchrun starts them. The relay service lends each what others do not use."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GLAKE_")}
    kept |= {
        "LOCAL_WORLD_SIZE": "2",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "GLAKE_SIM_MEMORY": "256MiB",
    }
    glake = [sys.executable, "-m", "glake.cli", "run", "--driver", "sim:dgx_a100", "--intercept"]
    command = [*glake, real_python, str(PROGRAM.with_name("ranks.py"))]
    ranks = [
        subprocess.Popen(command, env=kept | {"LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for rank in ranks:
        _, said = rank.communicate(timeout=240)
        assert rank.returncode == 0 and said == b"", said.decode()
