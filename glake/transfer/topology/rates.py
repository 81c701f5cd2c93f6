"""Estimates for discovery: the rates of links of each generation, from public logs.

All are in GB/s (1e9 bytes a second) one way, by copy engine. Discovery estimates no other rates. It
marks each of them as assumed, and a probe (probe.py) replaces it by the machine's own rate.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Both:
    """A link's rate towards the GPU (or out of DRAM), its rate back, and the source of the
    figures."""

    down: float
    up: float
    source: str

    def scaled(self, factor: float) -> "Both":
        return Both(self.down * factor, self.up * factor, self.source)


# One PCIe link of 16 lanes, by generation. Other widths are in proportion.
PCIE = {
    1: Both(3.1, 3.2, "a quarter of generation 3"),
    2: Both(6.2, 6.5, "half of generation 3"),
    3: Both(12.3, 13.0, "H2D of DGX-1V; D2H an estimate"),
    4: Both(26.0, 25.0, "nvbandwidth's README, A100"),
    5: Both(55.4, 55.2, "nvbandwidth logs, HGX H100"),
    6: Both(110.8, 110.4, "twice generation 5; no log"),
}

# A switch's link to the host while several GPUs use it, if it is known to carry less than one link.
UPLINK = {4: Both(23.75, 20.35, "derived from GLake's 83.1 / 71.2 on DGX A100")}

# Host DRAM of a socket (read, write) and the link between two sockets, by the best PCIe generation
# below the socket. Hosts with the same generation of PCIe have the same generation of memory.
DRAM = {
    3: Both(60.0, 60.0, "estimate for six channels of DDR4 as GPUs see it"),
    4: Both(150.0, 150.0, "estimate for eight channels of DDR4"),
    5: Both(221.0, 179.0, "all eight GPUs of an HGX H800 at once, by node"),
    6: Both(330.0, 270.0, "estimate from the HGX B300's both-ways figures"),
}
SOCKET_LINK = {
    3: Both(13.0, 13.0, "estimate, 10 to 16"),
    4: Both(38.0, 38.0, "estimate, 16 to 60"),
    5: Both(116.0, 116.0, "remote half of a two-socket stream copy, HGX H100"),
    6: Both(130.0, 130.0, "estimate"),
}
# The same for Grace, whose GPUs are joined by NVLink-C2C.
C2C_DRAM = Both(338.0, 364.0, "nvbandwidth #53, GB200: all GPUs of a node at once")
C2C_SOCKET_LINK = Both(100.0, 100.0, "estimate")
C2C_SHARE = 0.90  # of the links' rate by NVML: copies got 201 of 223.5 on GB200


@dataclass(frozen=True)
class NvlinkRate:
    """One NVLink: the rate that NVML reports for it, and the rate that copies reach."""

    reported: float
    reached: float
    source: str


# By NVLink's major version.
NVLINK = {
    1: NvlinkRate(19.2, 17.9, "in proportion to version 2"),
    2: NvlinkRate(25.781, 24.0, "pair over two links of DGX-1V: 47.9"),
    3: NvlinkRate(25.0, 23.0, "nvbandwidth's README, A100: 276 over 12 links"),
    4: NvlinkRate(26.562, 22.06, "nvbandwidth logs, HGX H100: 397 over 18 links"),
    5: NvlinkRate(50.0, 43.0, "nvbandwidth logs, HGX B300: 774 over 18 links"),
    6: NvlinkRate(100.0, 86.0, "twice version 5; no log"),
}


ESTIMATE = "estimated rate: "


def estimate(what: str, source: str) -> str:
    """The note on a rate from this page. A probe that measures the rate drops the note."""
    return f"{ESTIMATE}{what}: {source}"


def pcie(generation: int, lanes: int, shared: bool = False) -> Both:
    """A PCIe link's rates. Generations beyond the table count as its last one."""
    table = UPLINK if shared and generation in UPLINK else PCIE
    return table[_nearest(generation, table)].scaled(lanes / 16)


def dram(generation: int) -> Both:
    return DRAM[_nearest(generation, DRAM)]


def socket_link(generation: int) -> Both:
    return SOCKET_LINK[_nearest(generation, SOCKET_LINK)]


def nvlink(version: int, reported: float | None) -> float:
    """The rate of one link. `reported` is NVML's figure for it in GB/s, if there is one."""
    row = NVLINK[_nearest(version, NVLINK)]
    factor = reported / row.reported if reported is not None else 1.0
    # Drivers round the same signalling rate differently: 50 or 53.125 for version 5.
    return row.reached * (1.0 if 0.92 < factor < 1.08 else factor)


def nvlink_note(version: int) -> str:
    row = NVLINK[_nearest(version, NVLINK)]
    if version in NVLINK:
        return estimate(f"NVLink {version}", row.source)
    return estimate("NVLink of unknown version, taken for 1", row.source)


def plausible(version: int, reported: float) -> bool:
    """Whether a reported rate can be that of one link of that version. NVML may report it in
    another unit."""
    return 0.3 < reported / NVLINK[_nearest(version, NVLINK)].reported < 1.5


def _nearest(key: int, table: dict[int, object] | dict[int, Both] | dict[int, NvlinkRate]) -> int:
    return min(max(key, min(table)), max(table))
