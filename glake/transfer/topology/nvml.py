"""Reads NVML's facts about the GPUs, through nvidia-ml-py, as plain values.

NVML supports different calls on different generations. So every fact except a GPU's name and
address is optional. Nothing here guesses. discovery.py compares the facts with /sys.
"""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from glake import extras
from glake.errors import DriverAbsent

SWITCH, CPU, UNKNOWN = "switch", "cpu", "unknown"

# Indices of nvmlDeviceGetP2PStatus. They are plain numbers, because nvidia-ml-py defines the name
# of the index for reads as a tuple.
_P2P_WRITE = 1
_P2P_STATUS = {
    0: "ok",
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the way through the I/O hub does not support it",
    4: "a driver setting forbids it",
    5: "not supported",
}
# NVML numbers link versions in the order in which they appeared. This list has the major version of
# each.
_NVLINK_MAJOR = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}


@dataclass(frozen=True)
class NvLink:
    """An active link: its major version, NVML's figure for it in GB/s (or None), and its other end.

    `to` is SWITCH, CPU, UNKNOWN or a GPU's PCI address.
    """

    version: int
    reported: float | None
    to: str


@dataclass(frozen=True)
class Gpu:
    """One GPU. `c2c` is the rate of its NVLink-C2C to the CPU in GB/s, or 0 if it has none."""

    name: str
    address: str
    uuid: str = ""
    generation: int | None = None
    lanes: int | None = None
    most_lanes: int | None = None
    links: tuple[NvLink, ...] = ()
    c2c: float = 0.0
    mig: bool = False
    mig_uuids: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()  # the ids, by the driver, of processes that compute on it


@dataclass(frozen=True)
class NvmlFacts:
    """GPUs in NVML's order, which is that of PCI addresses. `ancestor` and `p2p` are by index pair.

    `ancestor` is NVML's topology level, from 10 (one PCIe switch) to 50 (across sockets). `p2p` is
    "ok", or the reason why one GPU cannot write to the other's memory. `lost` are GPUs that NVML
    counts but cannot open.
    """

    gpus: tuple[Gpu, ...]
    ancestor: dict[tuple[int, int], int] = field(default_factory=dict)
    p2p: dict[tuple[int, int], str] = field(default_factory=dict)
    lost: int = 0


def sysfs_address(bus_id: str | bytes) -> str:
    """NVML's "00000000:07:00.0" in the form of /sys: "0000:07:00.0"."""
    text = (bus_id.decode() if isinstance(bus_id, bytes) else bus_id).lower()
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


class Nvml:
    """One reading of NVML. `module` is pynvml, or a test's replacement."""

    def __init__(self, module: Any = None) -> None:
        if module is None:
            try:
                module = importlib.import_module("pynvml")
            except ImportError as error:
                raise DriverAbsent(extras.missing("NVML", "nvidia-ml-py", "topology")) from error
        self._nvml = module

    def read(self) -> NvmlFacts:
        """Reads everything about all GPUs. Raises DriverAbsent if NVML is missing or does not
        start."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise DriverAbsent(f"NVML does not start: {error}") from error
        try:
            count = nvml.nvmlDeviceGetCount()
            opened = [self._ask(nvml.nvmlDeviceGetHandleByIndex, at) for at in range(count)]
            handles = [handle for handle in opened if handle is not None]
            gpus = tuple(self._gpu(handle) for handle in handles)
            facts = NvmlFacts(gpus, lost=count - len(handles))
            for a, first in enumerate(handles):
                for b, second in enumerate(handles):
                    if a != b:
                        self._pair(facts, (a, b), first, second)
            return facts
        except nvml.NVMLError as error:
            raise DriverAbsent(f"NVML does not tell of its GPUs: {error}") from error
        finally:
            self._ask(nvml.nvmlShutdown)

    def _ask(self, call: Callable[..., Any] | None, *arguments: Any) -> Any:
        """The answer of a call. None if this driver, GPU or binding gives none."""
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None

    def _name(self, name: str) -> Any:
        return getattr(self._nvml, name, None)

    def _gpu(self, handle: Any) -> Gpu:
        nvml = self._nvml
        mode = self._ask(self._name("nvmlDeviceGetMigMode"), handle)
        mig = bool(mode and mode[0])
        return Gpu(
            name=_text(nvml.nvmlDeviceGetName(handle)),
            address=sysfs_address(nvml.nvmlDeviceGetPciInfo(handle).busId),
            uuid=_text(self._ask(nvml.nvmlDeviceGetUUID, handle) or ""),
            generation=self._ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle) or None,
            lanes=self._ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle) or None,
            most_lanes=self._ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle) or None,
            links=self._links(handle),
            c2c=self._c2c(handle),
            mig=mig,
            mig_uuids=self._mig_uuids(handle) if mig else (),
            processes=self._processes(handle),
        )

    def _processes(self, handle: Any) -> tuple[int, ...]:
        found = self._ask(self._name("nvmlDeviceGetComputeRunningProcesses"), handle) or ()
        return tuple(sorted(int(each.pid) for each in found))

    def _mig_uuids(self, handle: Any) -> tuple[str, ...]:
        nvml = self._nvml
        found = []
        for index in range(self._ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = self._ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            if part is not None:
                found.append(_text(self._ask(nvml.nvmlDeviceGetUUID, part) or ""))
        return tuple(found)

    def _links(self, handle: Any) -> tuple[NvLink, ...]:
        nvml = self._nvml
        common = self._value(handle, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON")
        links = []
        for number in range(nvml.NVML_NVLINK_MAX_LINKS):
            if not self._ask(nvml.nvmlDeviceGetNvLinkState, handle, number):
                continue
            version = self._ask(nvml.nvmlDeviceGetNvLinkVersion, handle, number) or 0
            speed = common or self._value(handle, "NVML_FI_DEV_NVLINK_GET_SPEED", number)
            links.append(
                NvLink(
                    # A number beyond this table counts as the next generation after the table's
                    # last one.
                    _NVLINK_MAJOR.get(version, 0 if version < 1 else 6),
                    speed / 1000 if speed else None,
                    self._remote(handle, number),
                )
            )
        return tuple(links)

    def _remote(self, handle: Any, number: int) -> str:
        nvml = self._nvml
        kind = self._ask(self._name("nvmlDeviceGetNvLinkRemoteDeviceType"), handle, number)
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return SWITCH
        if kind == nvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU:
            return CPU
        info = self._ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
        if info is None:
            return UNKNOWN
        bus_id = _text(info.busId)
        if not re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", bus_id):
            return UNKNOWN
        return sysfs_address(bus_id)

    def _c2c(self, handle: Any) -> float:
        count = self._value(handle, "NVML_FI_DEV_C2C_LINK_COUNT") or 0
        rate = self._value(handle, "NVML_FI_DEV_C2C_LINK_GET_MAX_BW") or 0
        return count * rate / 1000

    def _value(self, handle: Any, name: str, scope: int = 0) -> int | None:
        """The value of a field. None if there is none."""
        field_id = self._name(name)
        if field_id is None:
            return None
        values = self._ask(self._nvml.nvmlDeviceGetFieldValues, handle, [(field_id, scope)])
        if not values or values[0].nvmlReturn != 0:
            return None
        kind, value = values[0].valueType, values[0].value
        names = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
        return int(getattr(value, names[kind])) if kind in names else None

    def _pair(self, facts: NvmlFacts, pair: tuple[int, int], first: Any, second: Any) -> None:
        nvml = self._nvml
        level = self._ask(nvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
        if level is not None:
            facts.ancestor[pair] = level
        status = self._ask(self._name("nvmlDeviceGetP2PStatus"), first, second, _P2P_WRITE)
        if status is not None:
            facts.p2p[pair] = _P2P_STATUS.get(status, "NVML does not say why")


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
