"""Reads glake's statistics and gives them as metrics. It opens neither a driver nor an engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from glake.errors import GlakeError
from glake.metrics.metric import Metric, Samples

_STATES = ("healthy", "suspect", "quarantined")

_DEVICE = ("device",)
# The keys of glake.stats(device), with the metric of each.
_ALLOCATOR = {
    "allocated_bytes.all.current": Metric(
        "allocated_bytes", "Bytes of live blocks.", labels=_DEVICE
    ),
    "allocated_bytes.all.peak": Metric(
        "allocated_peak_bytes", "The most there were of them.", labels=_DEVICE
    ),
    "requested_bytes.all.current": Metric(
        "requested_bytes", "Of these, bytes asked for.", labels=_DEVICE
    ),
    "reserved_bytes.all.current": Metric("reserved_bytes", "Physical memory held.", labels=_DEVICE),
    "reserved_bytes.all.peak": Metric(
        "reserved_peak_bytes", "The most there was of it.", labels=_DEVICE
    ),
    "glake.free_bytes": Metric(
        "free_bytes", "Of the memory held, what is in no block.", labels=_DEVICE
    ),
    "glake.owed_bytes": Metric(
        "owed_bytes", "Memory that the driver refused to take back.", labels=_DEVICE
    ),
    "glake.pinned_bytes": Metric(
        "pinned_bytes", "Blocks kept where they are by pins.", labels=_DEVICE
    ),
    "glake.virtual_backed_bytes": Metric(
        "virtual_backed_bytes", "Bytes of backed pages of virtual ranges.", labels=_DEVICE
    ),
    "glake.virtual_shared_bytes": Metric(
        "virtual_shared_bytes", "Bytes of them whose memory other pages have, too.", labels=_DEVICE
    ),
    "glake.paused_bytes": Metric(
        "paused_bytes", "Bytes of regions that are paused.", labels=_DEVICE
    ),
    "glake.limit_bytes": Metric(
        "limit_bytes", "The most physical memory that may be held.", labels=_DEVICE
    ),
    "allocation.all.current": Metric("blocks", "Live blocks.", labels=_DEVICE),
    "allocation.all.allocated": Metric("allocations", "Blocks allocated.", True, _DEVICE),
    "allocation.all.freed": Metric("frees", "Blocks freed.", True, _DEVICE),
    "num_ooms": Metric("out_of_memory", "Allocations that failed.", True, _DEVICE),
    "num_alloc_retries": Metric(
        "allocation_retries", "Allocations tried again after memory was given back.", True, _DEVICE
    ),
    "glake.stitches": Metric("stitches", "Views stitched of free pieces.", True, _DEVICE),
    "glake.neighbours_gave_bytes": Metric(
        "neighbours_gave_bytes", "Bytes that other processes gave back.", True, _DEVICE
    ),
    "glake.gave_neighbours_bytes": Metric(
        "gave_neighbours_bytes", "Bytes given back because others asked.", True, _DEVICE
    ),
    "glake.stream_waits": Metric("stream_waits", "Waits enqueued for streams.", True, _DEVICE),
}
_CALLS = "glake.driver_calls."
_DRIVER_CALLS = Metric(
    "driver_calls",
    "Calls of the driver: of memory, and events of streams (mark, wait).",
    True,
    ("device", "call"),
)
_HOST = {
    "allocated_bytes.current": Metric("host_allocated_bytes", "Bytes of live pinned blocks."),
    "reserved_bytes.current": Metric("host_reserved_bytes", "Pinned host memory held."),
}
_SHARED = {
    "mapped_bytes": Metric("deduplication_mapped_bytes", "Shards that this process has mapped."),
    "shards": Metric("deduplication_shards", "How many there are."),
    "published_bytes": Metric(
        "deduplication_published_bytes", "Weights put into new shards.", True
    ),
    "found_bytes": Metric("deduplication_found_bytes", "Weights that were there already.", True),
    "given_back_bytes": Metric(
        "deduplication_given_back_bytes", "Private memory that was freed for that.", True
    ),
}

_TRANSFER = {
    "transfers": Metric("transfers", "Copies over several paths.", counter=True),
    "bytes": Metric("transfer_bytes", "Bytes of them.", counter=True),
    "failed": Metric("transfer_failures", "Copies that failed.", counter=True),
    "resent": Metric("transfer_resent_chunks", "Chunks sent again.", counter=True),
    "plain_copies": Metric("transfer_plain_copies", "Copies by one driver call.", counter=True),
    "plain_bytes": Metric("transfer_plain_bytes", "Bytes of them.", counter=True),
    "running": Metric("transfers_running", "Copies under way."),
    "waiting": Metric("transfers_waiting", "Copies that wait for a stream, or for others."),
}
_PATH = {
    "bytes": Metric("transfer_path_bytes", "Bytes carried by a path.", True, ("path",)),
    "chunks": Metric("transfer_path_chunks", "Chunks carried by a path.", True, ("path",)),
    "failures": Metric("transfer_path_failures", "Failures of a path.", True, ("path",)),
}
_PATH_STATE = Metric(
    "transfer_path_state", "1 for the state a path is in, 0 for others.", False, ("path", "state")
)
_QUARANTINED = Metric("transfer_paths_quarantined", "Paths that are left for their failures.")

_OPERATIONS = ("operation",)
_FILES = {
    "reads": (Metric("file_requests", "Requests that are over.", True, _OPERATIONS), "read"),
    "writes": (Metric("file_requests", "Requests that are over.", True, _OPERATIONS), "write"),
    "read_bytes": (Metric("file_bytes", "Bytes of files.", True, _OPERATIONS), "read"),
    "written_bytes": (Metric("file_bytes", "Bytes of files.", True, _OPERATIONS), "write"),
    "direct_bytes": (Metric("file_direct_bytes", "Of these, past the page cache.", True), None),
    "gds_bytes": (Metric("file_gds_bytes", "Of these, by GPUDirect Storage.", True), None),
    "failed": (Metric("file_failures", "Requests that failed.", True), None),
    "buffer_bytes": (Metric("file_buffer_bytes", "Pinned buffers of file engines."), None),
}
_NODE_REQUESTS = Metric("node_transfers", "Transfers of peers that are over.", True, _OPERATIONS)
_LEGS = Metric("node_bytes", "Bytes between nodes, by leg.", True, ("leg",))
_NODES = {
    "reads": (_NODE_REQUESTS, "read"),
    "writes": (_NODE_REQUESTS, "write"),
    "network_read_bytes": (_LEGS, "network_read"),
    "network_sent_bytes": (_LEGS, "network_sent"),
    "gpu_bytes": (_LEGS, "gpu"),
    "host_bytes": (_LEGS, "host"),
    "failed": (Metric("node_failures", "Transfers of peers that failed.", True), None),
    "retries": (Metric("node_retries", "Pieces that were read again.", True), None),
    "lost_peers": (Metric("node_lost_peers", "Peers that ended without a word.", True), None),
    "peers": (Metric("node_peers", "Connections to peers."), None),
    "under_way": (Metric("node_transfers_running", "Transfers of peers under way."), None),
    "buffer_bytes": (Metric("node_buffer_bytes", "Pinned buffers of nodes."), None),
    "buffers_held": (Metric("node_buffers_held", "Buffers of reads that do not end."), None),
}
_READABLE = Metric(
    "readable", "0 where a part could not be read: its metrics are left out.", False, ("part",)
)


def metrics() -> list[Metric]:
    """All metrics, in the order of read()."""
    found = [
        *_ALLOCATOR.values(),
        _DRIVER_CALLS,
        *_HOST.values(),
        *_SHARED.values(),
        *_TRANSFER.values(),
    ]
    found += [*_PATH.values(), _PATH_STATE, _QUARANTINED]
    found += [metric for metric, _ in (*_FILES.values(), *_NODES.values())]
    return list({metric.name: metric for metric in [*found, _READABLE]}.values())


class Reading:
    """Reads the metrics any number of times. It only remembers which devices have been in use."""

    def __init__(self) -> None:
        self._used: set[int] = set()

    def read(self) -> list[Samples]:
        """All metrics that have values now. Parts that are not in use have none."""
        found = {metric.name: Samples(metric) for metric in metrics()}
        parts: dict[str, Callable[[Any], None]] = {
            "allocator": self._allocator,
            "host": _host,
            "deduplication": _deduplication,
            "transfer": _transfer,
            "files": _files,
            "nodes": _nodes,
        }
        for part, read in parts.items():
            one: list[tuple[Metric, tuple[str, ...], float]] = []
            try:
                _require_usable()
                read(one.append)
                readable = 1
            except GlakeError:  # in a forked child, or when the driver is gone
                one, readable = [], 0
            for metric, labels, value in one:
                found[metric.name].values.append((labels, value))
            found[_READABLE.name].values.append(((part,), readable))
        return [samples for samples in found.values() if samples.values]

    def _allocator(self, give: Any) -> None:
        core = _core()
        if core is None:
            return
        for device in range(core.device_count()):
            # Asking an unused device for its statistics would take it into use.
            if device not in self._used and not core.memory(device):
                continue
            self._used.add(device)
            stats = core.stats(device)
            for key, metric in _ALLOCATOR.items():
                give((metric, (str(device),), stats[key]))
            for key, value in stats.items():
                if key.startswith(_CALLS):
                    call = key.removeprefix(_CALLS)
                    give((_DRIVER_CALLS, (str(device), call), value))


def _core() -> Any:
    """glake's core, if it has a driver. It never loads one."""
    core = sys.modules.get("glake._C")
    return core if core is not None and core.driver_path() else None


def _require_usable() -> None:
    """Raises Forked in a forked child. It has no engine of any kind, and its figures of them would
    be zeros."""
    if (core := _core()) is not None:
        core.device_count()


def _loaded(module: str) -> Any:
    return sys.modules.get(f"glake.transfer.{module}")


def _host(give: Any) -> None:
    core = _core()
    stats = core.host_stats() if core is not None else {}
    if stats:
        _plain(give, _HOST, stats)


def _deduplication(give: Any) -> None:
    module = sys.modules.get("glake.allocator.deduplication")
    totals = module.totals() if module is not None else {}
    if totals.get("published_bytes") or totals.get("found_bytes"):
        _plain(give, _SHARED, totals)


def _transfer(give: Any) -> None:
    engines = _loaded("engine")
    engine = engines.open_engine() if engines is not None else None
    if engine is None:
        return
    stats = engine.stats()
    _plain(give, _TRANSFER, stats)
    paths = stats["paths"]
    for path in paths:
        for key, metric in _PATH.items():
            give((metric, (path["path"],), path[key]))
        for state in _STATES:
            give((_PATH_STATE, (path["path"], state), float(path["state"] == state)))
    give((_QUARANTINED, (), sum(path["state"] == "quarantined" for path in paths)))


def _files(give: Any) -> None:
    if (module := _loaded("files.default")) is not None:
        _parted(give, _FILES, module.stats())


def _nodes(give: Any) -> None:
    if (module := _loaded("nodes.stats")) is not None:
        _parted(give, _NODES, module.totals())


def _plain(give: Any, table: Mapping[str, Metric], stats: Mapping[str, Any]) -> None:
    for key, metric in table.items():
        give((metric, (), stats[key]))


def _parted(
    give: Any, table: Mapping[str, tuple[Metric, str | None]], stats: Mapping[str, int]
) -> None:
    for key, (metric, label) in table.items():
        give((metric, () if label is None else (label,), stats[key]))
