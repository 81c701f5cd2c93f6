"""Made-up machines for discovery: trees like /sys, and a stand-in for nvidia-ml-py.

They follow public `nvidia-smi topo -m` tables and lspci trees of each kind of machine. A chain has
the PCI addresses from the root bus down, without the domain 0000.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SPEED = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
SWITCH, NPU = "switch", "npu"
# NVLink generation: NVML's number of that version, MB/s of one link.
NVLINK = {2: (2, 25781), 3: (4, 25000), 4: (6, 26562), 5: (7, 50000)}


def full(address: str) -> str:
    return address if address.count(":") == 2 else f"0000:{address}"


@dataclass
class Card:
    """A GPU: its chain, NUMA node, PCIe, and what its NVLinks lead to (GPU number, SWITCH, NPU)."""

    chain: str
    node: int
    links: list[int | str] = field(default_factory=list)
    name: str = "GPU"
    generation: int = 4
    lanes: int = 16
    most_lanes: int = 16
    version: int = 0
    link_mb: int | None = None
    c2c: tuple[int, int] | None = None  # links, MB/s of each
    mig: list[str] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)

    @property
    def address(self) -> str:
        return full(self.chain.split()[-1])


@dataclass
class Box:
    """A machine. `nodes`: NUMA node -> (package, cores, KiB, distances)."""

    cards: list[Card]
    nodes: dict[int, tuple[int | None, str, int, str]]
    levels: dict[tuple[int, int], int] = field(default_factory=dict)
    p2p: dict[tuple[int, int], int] = field(default_factory=dict)

    def sysfs(self, root: Path) -> Path:
        """Writes the tree under `root`."""
        for card in self.cards:
            self._ports(root, card)
        for number, (package, cores, kib, distances) in self.nodes.items():
            at = root / f"sys/devices/system/node/node{number}"
            at.mkdir(parents=True)
            (at / "cpulist").write_text(cores + "\n")
            (at / "meminfo").write_text(f"Node {number} MemTotal:  {kib} kB\n")
            (at / "distance").write_text(distances + "\n")
            if cores and package is not None:
                cpu = root / f"sys/devices/system/cpu/cpu{cores.split('-')[0]}/topology"
                cpu.mkdir(parents=True, exist_ok=True)
                (cpu / "physical_package_id").write_text(f"{package}\n")
        return root

    def _ports(self, root: Path, card: Card) -> None:
        bus = root / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        parts = card.chain.split()
        at = root / "sys/devices" / parts[0]
        for part in parts[1:]:
            at = at / full(part)
            at.mkdir(parents=True, exist_ok=True)
            gpu = full(part) == card.address
            facts = {
                "vendor": "0x10de" if gpu else "0x1000",
                "class": "0x030200" if gpu else "0x060400",
                "numa_node": str(card.node),
                "max_link_speed": f"{SPEED[card.generation]} GT/s PCIe",
                "max_link_width": str(card.most_lanes),
                "current_link_speed": "2.5 GT/s PCIe" if gpu else f"{SPEED[card.generation]} GT/s",
                "current_link_width": str(card.lanes),
            }
            for name, text in facts.items():
                (at / name).write_text(text + "\n")
            link = bus / full(part)
            if not link.is_symlink():
                link.symlink_to(at)

    def nvml(self) -> FakeNvml:
        return FakeNvml(self)


class FakeNvml:
    """The functions of nvidia-ml-py that discovery calls, over a Box. Handles are indices."""

    class NVMLError(Exception):
        pass

    NVML_NVLINK_MAX_LINKS = 36
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2
    NVML_NVLINK_DEVICE_TYPE_IBMNPU = 1
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90
    NVML_FI_DEV_NVLINK_GET_SPEED = 164
    NVML_FI_DEV_C2C_LINK_COUNT = 170
    NVML_FI_DEV_C2C_LINK_GET_MAX_BW = 172

    def __init__(self, box: Box) -> None:
        self._box = box
        self.starts = 0

    def _card(self, handle: int) -> Card:
        return self._box.cards[handle]

    def nvmlInit(self) -> None:
        self.starts += 1

    def nvmlShutdown(self) -> None:
        self.starts -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self._box.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self._card(handle).name.encode()

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self._card(handle).processes]

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return handle if isinstance(handle, str) else f"GPU-{handle:08x}"

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"0000{self._card(handle).address.upper()}".encode())

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return self._card(handle).generation

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return self._card(handle).lanes

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return self._card(handle).most_lanes

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [bool(self._card(handle).mig)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> str:
        parts = self._card(handle).mig
        if index >= len(parts):
            raise self.NVMLError("Not Found")
        return parts[index]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= len(self._card(handle).links):
            raise self.NVMLError("Not Supported")
        return 1

    def nvmlDeviceGetNvLinkVersion(self, handle: int, link: int) -> int:
        return NVLINK[self._card(handle).version][0]

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return {SWITCH: 2, NPU: 1}.get(str(self._card(handle).links[link]), 0)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> SimpleNamespace:
        to = self._card(handle).links[link]
        if not isinstance(to, int):
            return SimpleNamespace(busId=b"00000000:C8:00.0" if to == SWITCH else b"FFFFFFFF:FF")
        return SimpleNamespace(busId=f"0000{self._card(to).address.upper()}".encode())

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[Any]) -> list[SimpleNamespace]:
        card = self._card(handle)
        answers: dict[int, int | None] = {}
        if card.links:
            answers[90] = card.link_mb or NVLINK[card.version][1]
        if card.c2c:
            answers[170], answers[172] = card.c2c
        got = answers.get(fields[0][0])
        value = SimpleNamespace(uiVal=got)
        return [SimpleNamespace(nvmlReturn=0 if got else 3, valueType=1, value=value)]

    def nvmlDeviceGetTopologyCommonAncestor(self, first: int, second: int) -> int:
        if (first, second) not in self._box.levels:
            raise self.NVMLError("Not Supported")
        return self._box.levels[first, second]

    def nvmlDeviceGetP2PStatus(self, first: int, second: int, index: int) -> int:
        assert index == 1
        return self._box.p2p.get((first, second), 0)


TWO = {n: (n, f"{n * 32}-{n * 32 + 31}", 500 << 20, d) for n, d in ((0, "10 21"), (1, "21 10"))}
ONE = {0: (0, "0-63", 500 << 20, "10")}


def dgx1v() -> Box:
    buses = ("06", "07", "0a", "0b", "85", "86", "89", "8a")
    mesh = ["01", "02", "03", "03", "04", "04", "12", "12", "13", "15", "15", "23", "23", "26",
            "37", "45", "46", "47", "47", "56", "56", "57", "67", "67"]  # fmt: skip
    cards = []
    for gpu, bus in enumerate(buses):
        root, port = ("pci0000:00", "00") if gpu < 4 else ("pci0000:80", "80")
        up = f"{port}:0{2 + gpu % 4 // 2}.0 {int(port, 16) + 2 + 3 * (gpu // 2):02x}:00.0"
        down = f"{int(port, 16) + 3 + 3 * (gpu // 2):02x}:{8 + 8 * (gpu % 2):02x}.0"
        links = [int(pair.replace(str(gpu), "", 1)) for pair in mesh if str(gpu) in pair]
        chain = f"{root} {up} {down} {bus}:00.0"
        cards.append(Card(chain, gpu // 4, links, "Tesla V100-SXM2", generation=3, version=2))
    return Box(cards, TWO)


def dgx_a100() -> Box:
    """Each socket has four NUMA nodes. Each two GPUs share a switch. There are six NVSwitches."""
    buses = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
    nodes = (3, 3, 1, 1, 7, 7, 5, 5)
    cards = []
    for gpu, bus in enumerate(buses):
        base = ("00", "40", "80", "b0")[gpu // 2]
        first = int(base, 16)
        chain = (
            f"pci0000:{base} {base}:01.1 {first + 1:02x}:00.0 "
            f"{first + 2:02x}:{4 * (gpu % 2):02x}.0 "
            f"{int(bus, 16) - 2:02x}:00.0 {int(bus, 16) - 1:02x}:00.0 {bus}:00.0"
        )
        cards.append(Card(chain, nodes[gpu], [SWITCH] * 12, "A100-SXM4", version=3))
    far = {n: (n // 4, f"{n * 16}-{n * 16 + 15}", 250 << 20, "") for n in range(8)}
    return Box(cards, far)


def hgx_h100(links: int = 18, name: str = "H100-SXM5") -> Box:
    """Each GPU has a switch of its own, which it shares with a network card only."""
    buses = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")
    cards = []
    for gpu, bus in enumerate(buses):
        at = int(bus, 16)
        chain = (
            f"pci0000:{at - 3:02x} {at - 3:02x}:01.0 {at - 2:02x}:00.0 {at - 1:02x}:00.0 {bus}:00.0"
        )
        card = Card(chain, gpu // 4, [SWITCH] * links, name, generation=5, version=4)
        cards.append(card)
    return Box(cards, TWO)


def gb200_tray() -> Box:
    """Grace: C2C to the host, NVSwitches in other trays, GPU memory as NUMA nodes without cores."""
    cards = [
        Card(f"pci{domain}:00 {domain}:00:00.0 {domain}:01:00.0", gpu // 2, [SWITCH] * 18, "GB200",
             generation=5, lanes=1, most_lanes=1, version=5, c2c=(5, 44712))
        for gpu, domain in enumerate(("0008", "0009", "0018", "0019"))
    ]  # fmt: skip
    nodes = {**TWO, 2: (None, "", 180 << 20, ""), 10: (None, "", 180 << 20, "")}
    return Box(cards, nodes)


def a10_box() -> Box:
    buses = ("01", "25", "41", "61", "81", "a1", "c1", "e1")
    cards = [
        Card(
            f"pci0000:{int(b, 16) - 1:02x} {int(b, 16) - 1:02x}:03.1 {b}:00.0", gpu // 4, [], "A10"
        )
        for gpu, b in enumerate(buses)
    ]
    return Box(cards, TWO, p2p={(a, b): 1 for a in range(8) for b in range(8) if a // 4 != b // 4})


def a40_bridged() -> Box:
    box = a10_box()
    for gpu, card in enumerate(box.cards):
        card.name, card.version, card.link_mb, card.links = "A40", 3, 14062, [gpu ^ 1] * 4
    return box


def a100_pcie_bridged() -> Box:
    cards = a10_box().cards[:4]
    for gpu, card in enumerate(cards):
        card.name, card.version, card.links, card.node = "A100-PCIE", 3, [gpu ^ 1] * 12, 0
    return Box(cards, ONE)
