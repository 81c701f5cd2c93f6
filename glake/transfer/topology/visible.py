"""Finds which of NVML's GPUs CUDA shows this process, in CUDA's order."""

from collections.abc import Callable, Mapping, Sequence

from glake.transfer.topology.nvml import Gpu


def visible(
    gpus: Sequence[Gpu], environ: Mapping[str, str], note: Callable[[str], None]
) -> list[int]:
    """Indices into `gpus`, one for each CUDA device, according to CUDA_VISIBLE_DEVICES.

    As in CUDA, the list ends at its first entry that is no device. A note says so. Without
    CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA puts the fastest kind of GPU first. That kind is not known
    here.
    """
    if len({gpu.name for gpu in gpus}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        note(
            "GPUs of several kinds: taken to be numbered by PCI address; set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID so that CUDA does so too"
        )
    given = environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return list(range(len(gpus)))
    chosen: list[int] = []
    for entry in (text.strip() for text in given.split(",")):
        found = _index(entry, gpus)
        if found is None or found in chosen:
            if entry:
                note(f"CUDA_VISIBLE_DEVICES ends at {entry!r}, no further device, as CUDA reads it")
            break
        chosen.append(found)
    if len(chosen) < len(gpus):
        note(f"{len(gpus) - len(chosen)} of {len(gpus)} GPUs are hidden by CUDA_VISIBLE_DEVICES")
    return chosen


def _index(entry: str, gpus: Sequence[Gpu]) -> int | None:
    if entry.isdigit():
        return int(entry) if int(entry) < len(gpus) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    found = [
        index
        for index, gpu in enumerate(gpus)
        if any(uuid.startswith(entry) for uuid in (gpu.uuid, *gpu.mig_uuids) if uuid)
    ]
    return found[0] if len(found) == 1 else None
