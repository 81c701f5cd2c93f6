"""Where host memory lies: the system's NUMA nodes and the topology's sockets are not the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_python import output

from glake._C import CapacityGraph
from glake.errors import InvalidOption
from glake.platform_file import load_platforms
from glake.platforms import file_text

NPS4 = ((0, 1, 2, 3), (4, 5, 6, 7))  # an EPYC of two packages, four nodes each

PROGRAMS = Path(__file__).parent / "programs"


def copied(nodes: list[int], file: Path) -> Any:
    environment = {"GLAKE_DRIVER": "sim:box", "GLAKE_SIM_PLATFORMS": str(file)}
    return json.loads(output(PROGRAMS / "copy_from_nodes.py", json.dumps(nodes), **environment))


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
    # On such a system nodes 2 to 4 are the GPUs' own memory, and node 5 is the second socket's.
    assert graph([[0, 1], [5]]).node_sockets == [0, 0, -1, -1, -1, 1]
    for wrong in ([[0]], [[0], []], [[0], [0]], [[0], [-1]], [[0], [1 << 20]]):
        with pytest.raises(InvalidOption, match="numa_nodes"):
            graph(wrong)
