"""The hook's functions have the parameters of vLLM's: vllm_signatures.py STORED."""

import inspect
import sys
from pathlib import Path
from typing import Any

from glake.integrations import vllm
from glake.integrations.vllm_memory import GlakeOffloadingConnector, GlakeSleepBackend
from glake.integrations.vllm_offload import EngineWorker
from glake.integrations.vllm_tier import FileJobs, GlakeTierManager

OURS: dict[str, Any] = {
    "CuMemAllocator": vllm.RegionAllocator,
    "OffloadingWorker": EngineWorker,
    "FileSystemTierManager": GlakeTierManager,
    "DualQueueThreadPool": FileJobs,
    "KVConnectorBase_V1": GlakeOffloadingConnector,
    "SleepModeBackend": GlakeSleepBackend,
}


def bare(function: Any) -> list[str]:
    given = inspect.signature(function).parameters.values()
    return [str(each.replace(annotation=each.empty)) for each in given]


checked = 0
for line in Path(sys.argv[1]).read_text().splitlines()[1:]:
    place, _, arguments = line.partition(" ")
    owner, _, name = place.rpartition(":")[2].partition(".")
    if owner not in OURS or name == "__init__":
        continue
    theirs = arguments[1:-1].split(", ")
    function = vars(OURS[owner])[name]
    ours = bare(getattr(function, "__wrapped__", getattr(function, "__func__", function)))
    assert ours[: len(theirs)] == theirs, (place, ours, theirs)
    assert all("=" in each for each in ours[len(theirs) :]), place  # those of newer versions
    checked += 1
print(checked)
