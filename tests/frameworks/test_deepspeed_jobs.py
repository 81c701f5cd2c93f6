"""DeepSpeed's ZeRO with two ranks has the same losses with glake's hook, which carries its
bytes."""

import pytest

# Without glake, offloading to NVMe needs libaio's headers and a compiler. So the expected losses
# are those of ZeRO-3 in memory.
CASES = [(1, "none"), (2, "cpu"), (3, "none"), (3, "cpu"), (3, "nvme")]
STOCK = {}  # what each case without glake told, which serves every test that compares with it


def stock_of(job, folder, stage: int, offload: str):
    if (stage, offload) not in STOCK:
        STOCK[stage, offload] = job("deepspeed_zero", stage, offload, folder, ranks=2, hooks=None)
    return STOCK[stage, offload]


@pytest.mark.xdist_group("deepspeed")  # they build one extension
@pytest.mark.parametrize(("stage", "offload"), CASES)
def test_zero_has_the_same_losses(job, tmp_path, stage: int, offload: str) -> None:
    reference = "none" if offload == "nvme" else offload
    stock = stock_of(job, tmp_path / "stock", stage, reference)
    hooked = job("deepspeed_zero", stage, offload, tmp_path / "hooked", ranks=2)
    assert hooked["losses"] == stock["losses"]
    assert (stock["accelerator"], hooked["accelerator"]) == (
        "CPU_Accelerator",
        "GlakeCPU_Accelerator",
    )
    assert "RuntimeWarning" not in hooked["stderr"]
    assert hooked["unknown"] is False  # pageable memory is not taken for pinned
    assert hooked["allocated"] > 0
    assert (hooked["pinned"] > 1 << 20) == (offload != "none")
    assert (hooked["copies"] > 1 << 20) == (offload != "none")
    files = hooked["files"]
    assert (files["read_bytes"] > 100 << 20) == (offload == "nvme")
    assert (files["written_bytes"] > 100 << 20) == (offload == "nvme")
    assert files["failed"] == 0
    if offload == "nvme":  # locked and aligned memory mostly goes past the page cache
        assert files["direct_bytes"] > 0.8 * (files["read_bytes"] + files["written_bytes"])


@pytest.mark.xdist_group("deepspeed")
def test_what_is_not_allowed_stays(job, tmp_path) -> None:
    left = job("deepspeed_zero", 2, "cpu", tmp_path, ranks=2, hooks="cupy")
    assert left["accelerator"] == "CPU_Accelerator"


@pytest.mark.xdist_group("deepspeed")
def test_hook_on_and_off_in_one_process(job, tmp_path) -> None:
    told = job("deepspeed_on_and_off", tmp_path, hooks="none")
    assert told == told | {
        "before": "CPU_Accelerator",
        "installed": "GlakeCPU_Accelerator",
        "twice": True,
        "after": "CPU_Accelerator",
        "slots": True,
        "methods": True,
        "compatible": [True] * 3,  # without libaio too
        "as it was": True,
        "counted": 4096,
        "pinned": True,
        "moved": 8 << 20,
    }
