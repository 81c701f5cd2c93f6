"""CUDA_VISIBLE_DEVICES over the stand-ins, by the rules of the CUDA programming guide.

https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars: GPUs are named by indices or UUIDs
(or a unique part of one), and numbered in that order, up to the first invalid name. NVML does not
read the variable: "GPU enumeration of NVML is by PCI bus ID", and of all GPUs.
"""

import json

import pytest

NO_DEVICE = 100
LAST = "GPU-676c616b-652d-7369-6d63-756461000005"
FIRST = "GPU-676c616b-652d-7369-6d63-756461000000"


def seen(here, *arguments, preset="hgx_h100_h200", **variables):
    done = here("visible", *arguments, GLAKE_SIM_PRESET=preset, **variables)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("given", "gpus"),
    [("0,1,2,3,4,5,6,7", list(range(8))), ("2,1", [2, 1]), ("0,2,-1,1", [0, 2]), ("3,9,1", [3]),
     (" 7 , 0", [7, 0]), ("5,", [5]), (f"{LAST},{FIRST}", [5, 0]), (f"{LAST},2", [5, 2]),
     (LAST.lower().replace("gpu", "GPU"), [5])],
)  # fmt: skip
def test_lists(here, given, gpus):
    init, status, found, total, _, _ = seen(here, CUDA_VISIBLE_DEVICES=given)
    assert (init, status, found) == (0, 0, gpus)
    assert total == 8  # NVML sees all


def test_unset_is_all(here, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert seen(here)[2] == list(range(8))


@pytest.mark.parametrize("given", ["", "-1", "8", "none", "1,0,1", "GPU-676c", "GPU-ffff"])
def test_lists_that_leave_none(here, given):
    """The start of a UUID must fit one GPU alone. If a GPU is named twice, no GPU is visible.
    torch.cuda reads such a list in the same way."""
    init, status, found, total, _, _ = seen(here, CUDA_VISIBLE_DEVICES=given)
    assert (init, status, found, total) == (NO_DEVICE, NO_DEVICE, [], 8)


def test_a_short_uuid_that_is_unique(here):
    found = seen(here, CUDA_VISIBLE_DEVICES="GPU-676c", GLAKE_SIM_DEVICES="1")[2]
    assert found == [0]


def test_memory_is_of_the_gpu_named(here):
    used = seen(here, "1", CUDA_VISIBLE_DEVICES="6,3")[4]
    assert [gpu for gpu, mib in enumerate(used) if mib >= 64] == [3]


def test_links_are_those_of_the_gpus_named(here):
    """On a DGX-1V, GPU 0 reaches its own group of four and one GPU of the other."""
    peers = seen(here, preset="dgx1v", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7")[5]
    order = [5, 0, 6, 4]
    mixed = seen(here, preset="dgx1v", CUDA_VISIBLE_DEVICES="5,0,6,4")[5]
    expected = [[peers[a][b] for b in order] for a in order]
    assert mixed == expected
    assert any(0 in row for row in expected) and any(1 in row for row in expected)


def test_pytorch_sees_the_same(real):
    """torch.cuda reads the variable itself, as it counts GPUs by NVML."""
    done = real("visible_torch", CUDA_VISIBLE_DEVICES="3,1")
    assert done.stdout.split() == ["2", "4", "2"], done.stdout
