"""The hook's functions take what vLLM's take: vllm_signatures.py STORED."""

import inspect
import sys
from pathlib import Path
from typing import Any

from glake.integrations import vllm
from glake.integrations.vllm_offload import EngineWorker
from glake.integrations.vllm_tier import FileJobs, GlakeTierManager

OURS: dict[str, Any] = {
    "CuMemAllocator": vllm.RegionAllocator,
    "OffloadingWorker": EngineWorker,
    "FileSystemTierManager": GlakeTierManager,
    "DualQueueThreadPool": FileJobs,
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
    ours = bare(vars(OURS[owner])[name].__wrapped__ if name in ("use_memory_pool", "cudagraph_pool")
                else vars(OURS[owner])[name])  # fmt: skip
    assert ours[: len(theirs)] == theirs, (place, ours, theirs)
    assert all("=" in each for each in ours[len(theirs) :]), place  # of newer versions
    checked += 1
print(checked)
