"""Discovery over made-up machines: the graph has the preset's structure, gaps become notes."""

import re
import sys
from pathlib import Path

import machines
import pytest
from machines import SWITCH, Box, Card, FakeNvml

from glake.errors import DriverAbsent, InvalidDevice
from glake.platform_file import load_platforms, parse
from glake.platforms import Platform
from glake.transfer.topology import rates
from glake.transfer.topology.discovery import Found, discover
from glake.transfer.topology.nvml import Nvml
from glake.transfer.topology.sysfs import Sysfs


def found_on(box: Box, root: Path, nvml: bool = True, **environ: str) -> Found:
    class Missing(Nvml):
        def __init__(self) -> None:
            pass

        def read(self) -> None:  # type: ignore[override]
            raise DriverAbsent("NVML does not start: no library")

    source = Nvml(box.nvml()) if nvml else Missing()
    found = discover(environ, source, Sysfs(box.sysfs(root)))
    # A platforms file can hold what is discovered.
    assert parse(found.platform.as_dict(), "discovered") == found.platform
    return found


def structure(platform: Platform) -> tuple[object, ...]:
    edges = {edge.name for edge in platform.edges}
    return platform.gpus, platform.sockets, edges


def notes(found: Found) -> str:
    return "\n".join(found.platform.assumed)


@pytest.mark.parametrize(
    ("box", "preset"),
    [
        (machines.dgx1v(), "dgx1v"),
        (machines.dgx_a100(), "dgx_a100"),
        (machines.hgx_h100(), "hgx_h100_h200"),
        (machines.hgx_h100(8, "H800"), "hgx_h800"),
        (machines.gb200_tray(), "gb200_tray"),
        (machines.a10_box(), "a10_l40s_x8"),
        (machines.a40_bridged(), "a40x8_bridged"),
        (machines.a100_pcie_bridged(), "a100pcie_x4_bridged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_structure_is_the_presets(box: Box, preset: str, tmp_path: Path) -> None:
    known = load_platforms()[preset]
    found = found_on(box, tmp_path).platform
    assert structure(found) == structure(known)
    # Rates are estimates by generation, and must be those of the right generation.
    for edge in known.edges:
        guess = found.rate(edge.source, edge.target)
        assert guess == pytest.approx(edge.gb_per_s, rel=0.12), edge


def test_estimates_are_marked_and_numa_nodes_kept(tmp_path: Path) -> None:
    found = found_on(machines.dgx_a100(), tmp_path)
    assert found.platform.numa_nodes == ((0, 1, 2, 3), (4, 5, 6, 7))
    text = notes(found)
    for what in ("PCIe generation 4 x16 shared", "NVLink 3", "DRAM", "link between sockets"):
        assert re.search(rf"^estimated rate: {what}.*: \S", text, re.M), what
    assert found.addresses[1] == "0000:0f:00.0" and found.names[1] == "A100-SXM4"


def test_narrow_link_and_missing_nvlink(tmp_path: Path) -> None:
    box = machines.hgx_h100()
    box.cards[2].lanes = 8
    box.cards[5].links.pop()
    found = found_on(box, tmp_path)
    assert "cuda:2: its PCIe link runs on 8 of 16 lanes" in notes(found)
    assert "cuda:5: 17 NVLinks are up where others have 18" in notes(found)
    assert found.platform.rate("s0", "g2") == pytest.approx(55.4 / 2)
    assert found.platform.rate("g5", "N") == pytest.approx(17 * 22.06)


def test_slow_port_above_the_gpu_counts(tmp_path: Path) -> None:
    root = machines.hgx_h100().sysfs(tmp_path)
    port = root / "sys/bus/pci/devices/0000:15:01.0"
    (port / "max_link_speed").write_text("8.0 GT/s PCIe\n")
    (root / "sys/bus/pci/devices/0000:28:00.0/current_link_width").write_text("4\n")
    platform = discover({}, Nvml(machines.hgx_h100().nvml()), Sysfs(root)).platform
    assert platform.rate("s0", "g0") == 12.3 and platform.rate("s0", "g1") == 55.4 / 4
    assert platform.rate("s0", "g2") == 55.4


def test_virtual_machine_ports_are_not_believed(tmp_path: Path) -> None:
    box = machines.hgx_h100()
    root = box.sysfs(tmp_path)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n")
    port = root / "sys/bus/pci/devices/0000:15:01.0"
    (port / "max_link_speed").write_text("2.5 GT/s PCIe\n")
    found = discover({}, Nvml(box.nvml()), Sysfs(root))
    assert found.platform.rate("s0", "g0") == 55.4 and "virtual machine" in notes(found)


def test_mig_leaves_nvlinks_out(tmp_path: Path) -> None:
    box = machines.hgx_h100()
    box.cards[0].mig = ["MIG-aaaa", "MIG-bbbb"]
    found = found_on(box, tmp_path, CUDA_VISIBLE_DEVICES="MIG-bbbb,1")
    assert found.platform.gpus == 2 and found.platform.rate("g0", "N") is None
    assert found.platform.rate("g1", "N") is not None
    assert "cuda:0 is divided by MIG" in notes(found) and "cuda:1 alone is seen" in notes(found)


def test_without_nvml_pcie_remains(tmp_path: Path) -> None:
    found = found_on(machines.dgx1v(), tmp_path, nvml=False)
    assert "NVML does not start" in notes(found) and "taken for none" in notes(found)
    tree = {e.name for e in load_platforms()["dgx1v"].edges if not re.fullmatch(r"g\d>g\d", e.name)}
    assert {edge.name for edge in found.platform.edges} == tree
    assert found.platform.rate("u0", "g0") == 12.3


def test_no_gpu_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidDevice, match=r"no GPU here \(NVML does not start.*--preset NAME"):
        found_on(Box([], machines.ONE), tmp_path / "a", nvml=False)
    with pytest.raises(InvalidDevice, match="NVML lists none"):
        found_on(Box([], machines.ONE), tmp_path / "b")


def test_hidden_sysfs_falls_back_on_nvmls_levels(tmp_path: Path) -> None:
    box = machines.dgx1v()
    for a in range(8):
        for b in range(8):
            box.levels[a, b] = 10 if a // 2 == b // 2 else 40 if a // 4 == b // 4 else 50
    found = discover({}, Nvml(box.nvml()), Sysfs(tmp_path))
    assert structure(found.platform) == structure(load_platforms()["dgx1v"])
    text = notes(found)
    assert "/sys shows no NUMA nodes" in text and "taken from NVML's levels" in text
    assert found.platform.numa_nodes == ()


def test_one_gpu(tmp_path: Path) -> None:
    found = found_on(Box([Card("pci0000:00 00:01.0 01:00.0", -1)], machines.ONE), tmp_path)
    assert structure(found.platform) == (1, ((0,),), {"m0>s0", "s0>m0", "s0>g0", "g0>s0"})
    assert "NUMA node for some" not in notes(found)  # there is only one node


def test_numa_node_unknown(tmp_path: Path) -> None:
    box = machines.a10_box()
    for card in box.cards:
        card.node = -1
    found = found_on(box, tmp_path / "all")
    assert found.platform.sockets == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert "names no NUMA node" in notes(found) and "cuda:7 to 1" in notes(found)
    # A GPU goes to the node of another GPU under its root bus, whatever its number.
    cards = [Card("pci0000:80 80:01.0 81:00.0", -1), Card("pci0000:80 80:02.0 82:00.0", 1)]
    found = found_on(Box(cards, machines.TWO), tmp_path / "bus")
    assert found.platform.sockets == ((), (0, 1))
    assert "socket 0 has memory and no GPU" in notes(found)


def test_more_sockets_than_gpus_use(tmp_path: Path) -> None:
    nodes = {n: (n, f"{n * 8}-{n * 8 + 7}", 1 << 20, "") for n in range(4)}
    found = found_on(Box([Card("pci0000:00 00:01.0 01:00.0", 2)], nodes), tmp_path)
    assert found.platform.sockets == ((), (), (0,), ())
    assert found.platform.rate("s3", "s0") and "4 sockets: each pair" in notes(found)


def test_node_without_memory_joins_the_nearest(tmp_path: Path) -> None:
    nodes = {
        0: (0, "0-7", 1 << 20, "10 20 30"),
        1: (1, "8-15", 1 << 20, "20 10 12"),
        2: (2, "16-23", 0, "30 12 10"),
    }
    found = found_on(Box([Card("pci0000:00 00:01.0 01:00.0", 2)], nodes), tmp_path)
    assert found.platform.numa_nodes == ((0,), (1, 2)) and found.platform.sockets == ((), (0,))
    assert "NUMA node 2 has no memory: counted with node 1" in notes(found)


def test_nodes_without_packages_are_sockets(tmp_path: Path) -> None:
    nodes = {n: (None, f"{n * 8}-{n * 8 + 7}", 1 << 20, "10 12") for n in range(2)}
    found = found_on(Box([Card("pci0000:00 00:01.0 01:00.0", 1)], nodes), tmp_path)
    assert found.platform.sockets == ((), (0,))
    assert "no processor packages" in notes(found)


def test_nested_switches(tmp_path: Path) -> None:
    top = "pci0000:00 00:01.0 01:00.0"
    cards = [
        Card(f"{top} 02:{g // 2:02x}.0 0{3 + g // 2}:00.0 05:{g:02x}.0 1{g}:00.0", 0)
        for g in range(4)
    ]
    edges = {edge.name for edge in found_on(Box(cards, machines.ONE), tmp_path).platform.edges}
    assert {"s0>u0", "u0>u1", "u0>u2", "u1>g0", "u1>g1", "u2>g2", "u2>g3"} <= edges


def acs(control: int) -> bytes:
    """A configuration space with AER at 0x100 and ACS after it, at 0x148."""
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    config[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(config)


def test_acs(tmp_path: Path) -> None:
    def told(name: str, config: bytes) -> str:
        box = machines.dgx1v()
        root = box.sysfs(tmp_path / name)
        for port in (root / "sys/bus/pci/devices").iterdir():
            (port / "config").write_bytes(config)
        return notes(discover({}, Nvml(box.nvml()), Sysfs(root)))

    assert "ACS redirection is on at 0000:03:08.0, 0000:03:10.0" in told("on", acs(0x1D))
    assert "ACS" not in told("off", acs(0x11))
    assert "ACS not readable without root" in told("short", acs(0x1D)[:64])
    assert "ACS" not in told("loop", acs(0x1D).replace(b"\x0d\x00\x01\x00", b"\x02\x00\x81\x14"))


def test_visible_devices(tmp_path: Path) -> None:
    box = machines.dgx1v()
    found = found_on(box, tmp_path / "a", CUDA_VISIBLE_DEVICES="3,GPU-00000000")
    assert found.addresses == ("0000:0b:00.0", "0000:06:00.0")
    assert found.platform.rate("g0", "g1") == 48  # the box's GPUs 3 and 0
    assert "NVLinks to 0000:07:00.0, no GPU of this process" in notes(found)
    found = found_on(box, tmp_path / "b", CUDA_VISIBLE_DEVICES="0,9,1")
    assert found.platform.gpus == 1 and "ends at '9'" in notes(found)
    found = found_on(box, tmp_path / "twice", CUDA_VISIBLE_DEVICES="1,1,0")
    assert found.addresses == ("0000:07:00.0",) and "ends at '1'" in notes(found)
    with pytest.raises(InvalidDevice, match="CUDA_VISIBLE_DEVICES='' shows none of the 8"):
        found_on(box, tmp_path / "c", CUDA_VISIBLE_DEVICES="")
    box.cards[0].name = "T4"
    assert "GPUs of several kinds" in notes(found_on(box, tmp_path / "d"))
    known = notes(found_on(box, tmp_path / "e", CUDA_DEVICE_ORDER="PCI_BUS_ID"))
    assert "several kinds" not in known


def test_peer_access_and_fabric(tmp_path: Path) -> None:
    text = notes(found_on(machines.a10_box(), tmp_path / "a"))
    assert "no peer access between cuda:0-cuda:4, cuda:0-cuda:5" in text and "chipset" in text
    refused = found_on(machines.a10_box(), tmp_path / "r").refused
    assert refused == tuple((a, b) for a in range(4) for b in range(4, 8))
    box = machines.hgx_h100()
    box.p2p = {(a, b): 5 for a in range(8) for b in range(8) if a != b}
    found = found_on(box, tmp_path / "b")
    assert "fabric manager" in notes(found)
    assert not any("N" in edge.name for edge in found.platform.edges)


def test_old_driver_without_remote_types(tmp_path: Path) -> None:
    """Then the address of the far end says what it is: a GPU, NVIDIA's bridge, or unknown."""

    class Old(FakeNvml):
        nvmlDeviceGetNvLinkRemoteDeviceType = None
        nvmlDeviceGetP2PStatus = None
        nvmlDeviceGetMigMode = None

    box = machines.dgx_a100()
    root = box.sysfs(tmp_path)
    switch = root / "sys/bus/pci/devices/0000:c8:00.0"
    switch.mkdir()
    (switch / "vendor").write_text("0x10de\n")
    (switch / "class").write_text("0x068000\n")
    found = discover({}, Nvml(Old(box)), Sysfs(root))
    assert structure(found.platform) == structure(load_platforms()["dgx_a100"])
    (switch / "class").write_text("0x020000\n")
    found = discover({}, Nvml(Old(box)), Sysfs(root))
    assert found.platform.rate("g0", "N") is None and "left out" in notes(found)


def test_odd_speed_and_power9(tmp_path: Path) -> None:
    box = machines.dgx1v()
    box.cards[0].link_mb = 25  # as if it were no MB/s
    found = found_on(box, tmp_path / "a")
    assert "0.025 GB/s a link is not NVLink's" in notes(found)
    assert found.platform.rate("g0", "g1") == 24
    cards = [Card("pci0004:00 0004:00:00.0 0004:01:00.0", 0, ["npu"] * 3, "V100", version=2)]
    found = found_on(Box(cards, machines.ONE), tmp_path / "b")
    assert found.platform.rate("s0", "g0") == 72


def test_rates_by_what_a_link_reports() -> None:
    assert rates.nvlink(5, None) == rates.nvlink(5, 50.0) == rates.nvlink(5, 53.125) == 43.0
    assert rates.nvlink(3, 14.062) == pytest.approx(23.0 * 14.062 / 25)
    assert rates.nvlink(9, None) == rates.NVLINK[6].reached
    assert rates.pcie(9, 16) == rates.PCIE[6] and rates.pcie(4, 8).up == 12.5
    assert rates.pcie(4, 16, shared=True).down == 23.75 and rates.dram(1) == rates.DRAM[3]


def test_nvml_is_shut_down_and_used_by_its_names(tmp_path: Path) -> None:
    fake = machines.dgx1v().nvml()
    Nvml(fake).read()
    assert fake.starts == 0
    source = Path(sys.modules[Nvml.__module__].__file__ or "").read_text()
    used = set(re.findall(r"\bnvml\.(\w+)|\"((?:nvml|NVML_)\w+)\"", source))
    names = {first or second for first, second in used}
    assert len(names) > 15 and [name for name in names if not hasattr(fake, name)] == []
    real = pytest.importorskip("pynvml")
    assert [name for name in names if not hasattr(real, name)] == []


def test_a_gpu_that_fell_off_the_bus(tmp_path: Path) -> None:
    class Lost(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
            if index == 7:
                raise self.NVMLError("GPU is lost")
            return index

    box = machines.dgx1v()
    found = discover({}, Nvml(Lost(box)), Sysfs(box.sysfs(tmp_path)))
    assert found.platform.gpus == 7 and "1 GPU(s) do not answer NVML" in notes(found)


def test_too_many_gpus(tmp_path: Path) -> None:
    cards = [
        Card(f"pci0000:00 00:{g:02x}.0 {g + 1:02x}:00.0", 0, [SWITCH], version=4) for g in range(17)
    ]
    with pytest.raises(InvalidDevice, match="17 GPUs; a platform has at most 16"):
        found_on(Box(cards, machines.ONE), tmp_path)
