"""Where host memory lies: the system's NUMA nodes and the topology's sockets are not the same."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glake._C import CapacityGraph
from glake.errors import InvalidOption
from glake.platform_file import load_platforms
from glake.platforms import file_text

NPS4 = ((0, 1, 2, 3), (4, 5, 6, 7))  # an EPYC of two packages, four nodes each

# Copies 128 MiB to GPU 0 from host memory whose stretches are on the given nodes, in turn.
PROGRAM = """
import json, sys
from glake import _C, simcuda
from glake import transfer as t
size, nodes = 128 << 20, json.loads(sys.argv[1])
simcuda.configure("phantom", 1)
with t.Engine(sys.argv[2] if len(sys.argv) > 2 else None):
    host = _C.host_malloc(size)
    step = size // len(nodes)
    for at, node in enumerate(nodes):
        simcuda.place_host(host + at * step, step, node)
    result = t.copy(t.Raw(_C.malloc(size), size, 0), t.Raw(host, size)).wait().result()
    print(json.dumps([sorted(path for path, *_ in result.paths), round(result.seconds * 1e6)]))
"""


def copied(nodes: list[int], file: Path) -> Any:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GLAKE_")}
    environment |= {"GLAKE_DRIVER": "sim:box", "GLAKE_SIM_PLATFORMS": str(file)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(nodes)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def box(where: Path, numa_nodes: tuple[tuple[int, ...], ...]) -> Path:
    platform = replace(load_platforms()["dgx_a100"], numa_nodes=numa_nodes)
    where.write_text(file_text({"box": platform}))
    return where


@pytest.mark.parametrize(
    ("nodes", "sockets"),
    [
        ([3], [0]),
        ([6], [1]),
        ([0, 3, 1, 2], [0]),  # all of one socket
        ([0, 4] * 16, [0, 1] * 16),  # stripes of two sockets
    ],
)
def test_several_nodes_are_one_socket(nodes: list[int], sockets: list[int], tmp_path: Path) -> None:
    one, four = box(tmp_path / "one.json", ()), box(tmp_path / "four.json", NPS4)
    assert copied(nodes, four) == copied(sockets, one) != copied([1 - sockets[0]], one)


def test_nodes_of_no_socket_and_graphs_that_name_them_wrongly() -> None:
    def graph(nodes: Any) -> CapacityGraph:
        row = load_platforms()["gb200_tray"].as_dict() | {"numa_nodes": nodes}
        return CapacityGraph(json.dumps({"x": row}), "x")

    assert graph([[0], [1]]).node_sockets == [0, 1]
    assert graph([]).node_sockets == [0, 1]
    # The GPUs' own memory is nodes 2 to 4 of such a system, the second socket's the fifth.
    assert graph([[0, 1], [5]]).node_sockets == [0, 0, -1, -1, -1, 1]
    for wrong in ([[0]], [[0], []], [[0], [0]], [[0], [-1]], [[0], [1 << 20]]):
        with pytest.raises(InvalidOption, match="numa_nodes"):
            graph(wrong)
