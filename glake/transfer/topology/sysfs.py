"""Reads Linux's facts about PCIe devices and memory nodes under /sys, as plain values.

Nothing here guesses. A fact that a container hides or an old kernel lacks is None or empty.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # GT/s of a PCIe lane
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA = 0x10DE
_DISPLAY = 0x03  # PCI base class of GPUs, with a screen or without

# The PCI Express extended capability "access control services" (ACS). These bits of its control
# register send a request between two devices under one switch to the host first.
_ACS = 0x000D
_ACS_REDIRECTS = 0x04 | 0x08


@dataclass(frozen=True)
class Port:
    """One end of a PCIe link: its generation and lanes, the most possible and the present ones.
    None if they are unknown."""

    generation: int | None
    lanes: int | None
    generation_now: int | None
    lanes_now: int | None


@dataclass(frozen=True)
class NumaNode:
    """A node with memory or cores. `package` is the processor of its cores."""

    number: int
    has_cores: bool
    memory_bytes: int
    package: int | None
    distances: dict[int, int]


class Sysfs:
    """Reads /sys and /proc under `root`. Tests pass a made-up tree."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._pci = root / "sys/bus/pci/devices"

    def gpus(self) -> list[str]:
        """The PCI addresses of NVIDIA's GPUs, in order."""
        try:
            found = sorted(entry.name for entry in self._pci.iterdir())
        except OSError:
            return []
        return [
            name
            for name in found
            if self._hex(name, "vendor") == _NVIDIA
            and (self._hex(name, "class") or 0) >> 16 == _DISPLAY
        ]

    def chain(self, address: str) -> tuple[str, ...]:
        """The name of a device's root bus, and then the PCI addresses from its root port down to
        it.

        Empty if the device is not shown here.
        """
        try:
            parts = (self._pci / address).resolve(strict=True).parts
        except OSError:
            return ()
        roots = [at for at, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f:]+", part)]
        if not roots:
            return ()
        below = [part for part in parts[roots[-1] + 1 :] if _ADDRESS.fullmatch(part)]
        return (parts[roots[-1]], *below)

    def port(self, address: str) -> Port:
        return Port(
            self._speed(address, "max_link_speed"),
            self._lanes(address, "max_link_width"),
            self._speed(address, "current_link_speed"),
            self._lanes(address, "current_link_width"),
        )

    def is_nvswitch(self, address: str) -> bool | None:
        """Whether NVIDIA's bridge device (class 0x0680) is at the address. None: it is not
        shown."""
        vendor, kind = self._hex(address, "vendor"), self._hex(address, "class")
        if vendor is None or kind is None:
            return None
        return vendor == _NVIDIA and kind >> 8 == 0x0680

    def numa_node(self, address: str) -> int | None:
        """The node of a device. None if the firmware does not say (-1) or it is hidden."""
        text = self._read(self._pci / address / "numa_node")
        return int(text) if text is not None and text.isdigit() else None

    def redirects(self, address: str) -> bool | None:
        """Whether a port sends traffic between its devices up to the host (ACS).

        None if the configuration space cannot be read that far. Only root can do so.
        """
        try:
            config = (self._pci / address / "config").read_bytes()
        except OSError:
            return None
        if len(config) <= 0x100:
            return None
        at, seen = 0x100, set()
        while 0x100 <= at <= len(config) - 8 and at not in seen:
            seen.add(at)
            head = int.from_bytes(config[at : at + 4], "little")
            if head & 0xFFFF == _ACS:
                return bool(int.from_bytes(config[at + 6 : at + 8], "little") & _ACS_REDIRECTS)
            at = head >> 20
        return False

    def numa_nodes(self) -> list[NumaNode]:
        base = self._root / "sys/devices/system/node"
        try:
            found = [re.fullmatch(r"node(\d+)", entry.name) for entry in base.iterdir()]
        except OSError:
            return []
        numbers = sorted(int(match[1]) for match in found if match)
        return [self._numa(base / f"node{number}", number, numbers) for number in numbers]

    def is_virtual(self) -> bool:
        """Whether a hypervisor runs this machine. Then its PCIe tree may be made up."""
        flags = re.search(r"^flags\s*:(.*)$", self._read(self._root / "proc/cpuinfo") or "", re.M)
        return flags is not None and "hypervisor" in flags[1].split()

    def _numa(self, at: Path, number: int, numbers: list[int]) -> NumaNode:
        cores = re.match(r"\d+", self._read(at / "cpulist") or "")
        total = re.search(r"MemTotal:\s*(\d+) kB", self._read(at / "meminfo") or "")
        steps = (self._read(at / "distance") or "").split()
        package = None
        if cores is not None:
            cpu = self._root / f"sys/devices/system/cpu/cpu{cores[0]}"
            text = self._read(cpu / "topology/physical_package_id")
            package = int(text) if text is not None and text.isdigit() else None
        return NumaNode(
            number,
            cores is not None,
            int(total[1]) * 1024 if total else 0,
            package,
            dict(zip(numbers, map(int, steps), strict=False)),
        )

    def _read(self, path: Path) -> str | None:
        try:
            return path.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return None

    def _hex(self, address: str, name: str) -> int | None:
        text = self._read(self._pci / address / name)
        return int(text, 16) if text and re.fullmatch(r"0x[0-9a-f]+", text) else None

    def _speed(self, address: str, name: str) -> int | None:
        """The generation in, for example, "16.0 GT/s PCIe". None for "Unknown"."""
        text = self._read(self._pci / address / name) or ""
        match = re.match(r"([0-9.]+) GT/s", text)
        return _GENERATION.get(float(match[1])) if match else None

    def _lanes(self, address: str, name: str) -> int | None:
        """The lanes. Kernels write 0 and 255 if there is no link."""
        text = self._read(self._pci / address / name) or ""
        lanes = int(text) if text.isdigit() else 0
        return lanes if 0 < lanes <= 32 else None
