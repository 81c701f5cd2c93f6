"""Processes that see different GPUs of a node: one topology, by each one's own numbers."""

import os

import machines
import pytest

from glake.errors import BadMessage
from glake.transfer import topology
from glake.transfer.place import graph_of
from glake.transfer.relay import directory, modes
from glake.transfer.relay.link_shares import Ledger
from glake.transfer.relay.numbers import Numbers
from glake.transfer.topology import node
from glake.transfer.topology.node import Node
from glake.transfer.topology.nvml import Nvml

PLATFORMS = ["dgx_a100", "dgx1v", "hgx_h100_h200", "gb200_tray"]
SIMULATED = {"GLAKE_DRIVER": "sim:dgx1v", "GLAKE_SIM_VISIBLE_DEVICES": "1"}


def test_visible_sets_that_differ_meet_at_one_key() -> None:
    keys = set()
    for shown, seen in (
        ("3", (3,)),
        ("5,1", (5, 1)),
        (node.simulated_uuid(6), (6,)),
        (None, tuple(range(8))),
    ):
        environ = SIMULATED | ({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
        found = node.current(environ)
        assert found.seen == seen and found.order[: len(seen)] == seen
        assert found.hides_some == (len(seen) < 8)
        keys.add(directory.key_of(found.topology))
    assert len(keys) == 1


def test_gpus_of_a_named_machine_have_names_of_their_own() -> None:
    own = node.simulated_uuid(6, "one")
    assert own != node.simulated_uuid(6) and own != node.simulated_uuid(6, "two")
    for machine, seen in (("one", (6,)), ("two", ())):
        environ = SIMULATED | {"GLAKE_SIM_MACHINE": machine, "CUDA_VISIBLE_DEVICES": own}
        assert node.current(environ).seen == seen


def test_a_simulator_without_the_option_shows_all() -> None:
    environ = {"GLAKE_DRIVER": "sim:dgx1v", "CUDA_VISIBLE_DEVICES": "3"}
    assert node.current(environ).seen == tuple(range(8))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_limits_by_other_numbers_are_the_same_links(platform: str) -> None:
    whole = topology.from_preset(platform)
    count = whole.platform.gpus
    found = Node(whole, (count - 1,))
    numbers = Numbers(found)
    there = graph_of(found.topology).limits()
    names_there = graph_of(found.topology).edges()
    here, names_here = (
        graph_of(found.renumbered()).limits(),
        graph_of(found.renumbered()).edges(),
    )
    assert len(here) == len(there)

    def place(name: str) -> str:
        ends = name.split(">")
        return ">".join(f"g{numbers.there(int(e[1:]))}" if e[0] == "g" else e for e in ends)

    which = numbers.limits_here([float(i) for i in range(len(there))])
    for (terms, most), index in zip(here, which, strict=True):
        terms_there, most_there = there[int(index)]
        assert most == most_there
        named = {(place(names_here[edge]), weight) for edge, weight in terms}
        assert named == {(names_there[edge], weight) for edge, weight in terms_there}


def test_numbers_and_ends() -> None:
    numbers = Numbers(Node(topology.from_preset("dgx_a100"), (5, 2)))
    assert [numbers.there(gpu) for gpu in range(8)] == [5, 2, 0, 1, 3, 4, 6, 7]
    assert all(numbers.here(numbers.there(gpu)) == gpu for gpu in range(8))
    assert numbers.ends_there((-1, 1, 0, 0)) == (-1, 1, 5, 0)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_one_that_sees_one_gpu_is_lent_the_others(platform: str) -> None:
    graph = graph_of(platform)
    books = Ledger(graph)
    books.join(0, [1], graph.gpus, [1])
    assert {*books.clients[0].relays} == {*range(graph.gpus)} - {1}
    books.join(1, [0], graph.gpus, [0, 1])  # it sees both, and relays on these alone
    assert {*books.clients[1].relays} <= {1}
    with pytest.raises(BadMessage, match="cuda:15"):
        books.join(2, [0], graph.gpus, [0, 15])


def test_gpus_that_others_compute_on() -> None:
    box = machines.hgx_h100()
    for gpu, processes in {1: [os.getpid()], 2: [77, os.getpid()], 3: [78]}.items():
        box.cards[gpu].processes = processes
    busy = Nvml(box.nvml())
    assert node.used_by_others({}, busy) == {2: 77, 3: 78}
    assert node.used_by_others({"CUDA_VISIBLE_DEVICES": "3,1"}, busy) == {0: 78}
    assert node.used_by_others({}, Nvml(machines.hgx_h100().nvml())) == {}


@pytest.mark.parametrize(
    ("environ", "several"),
    [
        ({}, False),
        ({"LOCAL_WORLD_SIZE": "4"}, True),
        ({"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "4"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "2"}, False),
        ({"MPI_LOCALNRANKS": "8"}, True),
        ({"PMI_SIZE": "8"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,8"}, True),
        ({"SLURM_STEP_NUM_TASKS": "8"}, True),
        ({"RANK": "3", "WORLD_SIZE": "8"}, True),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False),
    ],
)
def test_launchers(environ: dict[str, str], several: bool) -> None:
    assert modes.one_of_several(environ) == several
    assert modes.chosen(None, environ) == ("lent" if several else "all")
